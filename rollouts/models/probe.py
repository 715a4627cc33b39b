"""Node probes of a wave: who was measured together, when, and whether it is over."""

from django.db import models

from rollouts.models.rollout import Wave


class ProbeRound(models.Model):
    """Idle machines of both arms of a wave that are probed at the same instant."""

    wave = models.ForeignKey(Wave, on_delete=models.PROTECT, related_name="probes")
    number = models.PositiveIntegerField(help_text="from 1")
    period = models.PositiveIntegerField(help_text="of the plan's schedule, from 0")
    machines = models.JSONField(help_text="names, in order; nothing tells the arms apart")
    begun_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    measured = models.PositiveIntegerField(default=0, help_text="machines that gave a figure")

    class Meta:
        ordering = ("wave", "number")
        constraints = (
            models.UniqueConstraint(fields=["wave", "number"], name="probe_round_once"),
            models.UniqueConstraint(
                fields=["wave"],
                condition=models.Q(ended_at__isnull=True),
                name="probe_round_one_at_a_time",
            ),
        )

    def __str__(self) -> str:
        return f"probe {self.number} of {self.wave}"
