"""What is remembered of machines: that one was cleared, that one was changed by others."""

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models import Machine
from rollouts.models.rollout import Attempt, Membership, Wave


class Clearance(AppendOnlyModel):
    """A person's word that a machine may be offered the bundle again that it failed or left.

    Without it a machine on which an attempt failed or fell back is not picked for that bundle.
    """

    attempt = models.OneToOneField(Attempt, on_delete=models.PROTECT, related_name="clearance")
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    reason = models.CharField(max_length=300)
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.CheckConstraint(condition=~models.Q(reason=""), name="clearance_has_reason"),
        )

    def __str__(self) -> str:
        return f"{self.attempt.machine} cleared by {self.actor}"


class Contamination(AppendOnlyModel):
    """A version that came onto a machine of an open comparison, and not by this rollout.

    The machine keeps its arm; the wave's evidence says so.
    """

    wave = models.ForeignKey(Wave, on_delete=models.PROTECT, related_name="contaminations")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="contaminations")
    arm = models.CharField(max_length=8, choices=Membership.Arm)
    kind = models.CharField(max_length=40)
    slot = models.CharField(max_length=40, blank=True)
    version = models.CharField(max_length=100)
    was_staged = models.BooleanField(help_text="the version had been staged there before")
    boot_id = models.CharField(max_length=64, blank=True)
    at = models.DateTimeField(help_text="from when on it was read back")
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("wave", "at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["wave", "machine", "kind", "slot", "at"], name="contamination_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine} runs {self.kind} {self.version} in {self.wave}"
