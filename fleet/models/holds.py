"""When what a machine's BMC reports does not count."""

from django.db import models

from fleet.models.inventory import Machine


class TelemetryHold(models.Model):
    """From `since` until `until` (empty: still) one witness's telemetry of a machine is left out.

    After an update of the BMC its inventory, sensors, clock and login have to match the snapshot
    taken before. `reasons` name what does not yet, such as a sensor that vanished.
    """

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="telemetry_holds")
    witness = models.CharField(max_length=10, default="bmc")
    since = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)
    before = models.JSONField(help_text="the snapshot to match")
    reasons = models.JSONField(default=list, blank=True, help_text="what does not match")
    checked_at = models.DateTimeField(null=True, blank=True)
    evidence = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("machine", "since")
        constraints = (
            models.UniqueConstraint(
                fields=["machine", "witness"],
                condition=models.Q(until__isnull=True),
                name="telemetry_hold_stands_once",
            ),
            models.CheckConstraint(
                condition=models.Q(until__isnull=True) | models.Q(until__gte=models.F("since")),
                name="telemetry_hold_ends_after_start",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine} {self.witness} since {self.since:%Y-%m-%d %H:%M}"
