"""What changed elsewhere: drivers, switches, settings, places, and clocks that were set."""

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models.inventory import Machine


class Change(AppendOnlyModel):
    """One change that was made elsewhere, as somebody or some system reported it.

    The machines that it touched are kept as they were at the report: a selector may match others
    later. A repeated report of the same source and key is the same change.
    """

    class Kind(models.TextChoices):
        DRIVER = "driver"
        FIRMWARE = "firmware"
        SWITCH = "switch"
        SETTING = "setting"
        PLACE = "place"
        PART = "part"
        RETIREMENT = "retirement"
        OTHER = "other"

    source = models.CharField(max_length=100, help_text="who reports: a system's name")
    key = models.CharField(max_length=200, help_text="of the source; a report counts once")
    kind = models.CharField(max_length=12, choices=Kind)
    what = models.CharField(max_length=100, help_text="component or setting that changed")
    selector = models.CharField(max_length=1000, blank=True, help_text="as it was reported")
    machines = models.ManyToManyField(Machine, through="ChangedMachine", related_name="changes")
    machine_count = models.PositiveIntegerField()
    old = models.CharField(max_length=200, blank=True)
    new = models.CharField(max_length=200, blank=True)
    note = models.CharField(max_length=500, blank=True)
    at = models.DateTimeField(help_text="when it was made, by the clock")
    reported_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("-at", "-pk")
        constraints = (models.UniqueConstraint(fields=["source", "key"], name="change_once"),)
        indexes = (models.Index(fields=["at"], name="change_at"),)

    def __str__(self) -> str:
        return f"{self.what}: {self.old or '?'} → {self.new or '?'}"


class ChangedMachine(AppendOnlyModel):
    """One machine that a change touched."""

    change = models.ForeignKey(Change, on_delete=models.PROTECT, related_name="touched")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["change", "machine"], name="changed_machine_once"),
        )

    def __str__(self) -> str:
        return f"{self.machine}: {self.change}"


class ClockReading(models.Model):
    """Where the product's time runs on from, on a host and since its boot.

    `steady_seconds` is of the clock that nobody can set. `set_by_seconds` is how far the wall is
    known to have been set away from the product's time and not come back.
    """

    host = models.CharField(max_length=200, unique=True, help_text="name and boot of the host")
    wall = models.DateTimeField()
    steady_seconds = models.FloatField(help_text="since the host's boot")
    set_by_seconds = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return f"{self.host}: {self.wall:%Y-%m-%d %H:%M:%S} at {self.steady_seconds:.0f} s"


class ClockJump(AppendOnlyModel):
    """The wall's clock was set: between two readings it moved otherwise than the steady clock."""

    host = models.CharField(max_length=200)
    seconds = models.FloatField(help_text="how far it was set: forward is positive")
    before = models.DateTimeField(help_text="what it would have said, had nobody set it")
    after = models.DateTimeField(help_text="what it said")

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.UniqueConstraint(fields=["host", "before", "after"], name="clock_jump_once"),
        )

    def __str__(self) -> str:
        return f"the clock was set by {self.seconds:+.0f} s at {self.before:%Y-%m-%d %H:%M:%S}"
