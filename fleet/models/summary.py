"""Summaries of telemetry, kept ready so that plans need not read it again."""

from typing import ClassVar

from django.db import models

from fleet.models.inventory import Platform


class TelemetrySummary(models.Model):
    """What the machines of one range of keys reported on one day, added up and packed.

    It is rebuilt from telemetry and never a truth of its own. `as_of` is when it was made, by the
    clock; a day is settled once that is late enough. Empty content: a worker is at it, until its
    lease (by the wall) runs out.
    """

    #: Keys in a range; a range begins at a multiple of this.
    MACHINES: ClassVar[int] = 4096

    day = models.DateField()
    first_machine = models.BigIntegerField(help_text="first key of the range")
    last_machine = models.BigIntegerField(default=-1, help_text="last machine that there was")
    as_of = models.DateTimeField()
    reports_from = models.DateTimeField(
        null=True, blank=True, help_text="start of the first report of the day"
    )
    content = models.BinaryField(default=b"")
    leased_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-day", "first_machine")
        constraints = (
            models.UniqueConstraint(fields=["day", "first_machine"], name="summary_once"),
        )

    def __str__(self) -> str:
        return f"machines from {self.first_machine} on {self.day}"


class ServiceDay(models.Model):
    """Machine-time that one range of machines reported on one day, by platform, pool and workload.

    Written with the day's `TelemetrySummary` and from it; never a truth of its own. It stays when
    the summary goes. A machine counts where it stood when the row was made.
    """

    day = models.DateField()
    first_machine = models.BigIntegerField(help_text="first key of the range")
    platform = models.ForeignKey(Platform, on_delete=models.PROTECT, related_name="+")
    pool = models.CharField(max_length=100, blank=True)
    job_kind = models.CharField(max_length=24, blank=True, help_text="empty: not told")
    machines = models.PositiveIntegerField(help_text="that reported")
    service_hours = models.FloatField(help_text="machine-hours in service that were reported")

    class Meta:
        ordering = ("day", "first_machine")
        constraints = (
            models.UniqueConstraint(
                fields=["day", "first_machine", "platform", "pool", "job_kind"],
                name="service_day_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.platform} {self.pool} {self.job_kind} on {self.day}"
