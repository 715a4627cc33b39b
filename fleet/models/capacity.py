"""How many machines stood where, day by day: kept ready so that no page counts the past again."""

from django.db import models

from fleet.models.inventory import Platform


class CapacityDay(models.Model):
    """One platform and pool on one day; remade from `StateChange`, never a truth of its own.

    What cannot be remade (who was canary, cordoned, qualified) is what was measured last on that
    day, and empty where nobody measured it.
    """

    day = models.DateField()
    platform = models.ForeignKey(Platform, on_delete=models.PROTECT, related_name="+")
    pool = models.CharField(max_length=100, blank=True)
    counts = models.JSONField(default=dict, help_text="machines per state at the day's end")
    entered = models.JSONField(default=dict, help_text="entries into each state on that day")
    stays = models.JSONField(
        default=dict, help_text="seconds of each stay that ended on that day, by state"
    )
    canary = models.PositiveIntegerField(null=True, blank=True)
    cordoned = models.PositiveIntegerField(null=True, blank=True)
    qualified = models.PositiveIntegerField(null=True, blank=True)
    as_of = models.DateTimeField(help_text="when it was made, by the clock")

    class Meta:
        ordering = ("day", "platform", "pool")
        constraints = (
            models.UniqueConstraint(fields=["day", "platform", "pool"], name="capacity_day_once"),
        )

    def __str__(self) -> str:
        return f"{self.platform} {self.pool} on {self.day}"
