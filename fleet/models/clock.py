"""The one clock that windows, deadlines and telemetry follow, and the worker's heartbeat."""

from django.db import models


class Clock(models.Model):
    """Virtual time, shared by all processes; there is one row.

    In mode `real` the time is the wall's. In `scaled` it advances by ticks, `rate` virtual
    seconds a wall second, and a stopped process stops it. In `stepped` only the driver moves it.
    """

    class Mode(models.TextChoices):
        REAL = "real"
        SCALED = "scaled"
        STEPPED = "stepped"

    mode = models.CharField(max_length=8, choices=Mode, default=Mode.REAL)
    rate = models.FloatField(default=1.0)
    virtual_time = models.DateTimeField(null=True, blank=True)
    ticked_at = models.DateTimeField(null=True, blank=True, help_text="wall time of the last tick")

    class Meta:
        constraints = (
            models.CheckConstraint(condition=models.Q(pk=1), name="clock_is_one_row"),
            models.CheckConstraint(condition=models.Q(rate__gt=0), name="clock_rate_positive"),
            models.CheckConstraint(
                condition=models.Q(mode="real") | models.Q(virtual_time__isnull=False),
                name="clock_virtual_has_time",
            ),
        )

    def __str__(self) -> str:
        return f"{self.mode} clock"


class Heartbeat(models.Model):
    """Wall time at which a worker last did something end to end; one row per name."""

    name = models.CharField(max_length=60, unique=True)
    beat_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} at {self.beat_at:%Y-%m-%d %H:%M:%S}"
