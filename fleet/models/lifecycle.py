"""What became of a machine: cordons that stand, and every change of state."""

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models.gates import Gate
from fleet.models.inventory import Machine


class Cordon(models.Model):
    """A named owner's reason why a machine may take no work; several may stand at once."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="cordons")
    owner = models.CharField(max_length=100, help_text="user name, or rollout:<id>")
    reason = models.CharField(max_length=300)
    since = models.DateTimeField()
    lifted_at = models.DateTimeField(null=True, blank=True)
    lifted_by = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ("machine", "since")
        constraints = (
            models.UniqueConstraint(
                fields=["machine", "owner", "reason"],
                condition=models.Q(lifted_at__isnull=True),
                name="cordon_stands_once_per_owner",
            ),
            models.CheckConstraint(
                condition=models.Q(lifted_at__isnull=True)
                | models.Q(lifted_at__gte=models.F("since")),
                name="cordon_lifted_after_set",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine}: {self.owner}, {self.reason}"


class StateChange(AppendOnlyModel):
    """One move of one machine along its lifecycle, with who, why and, into service, the gate."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="state_changes")
    old_state = models.CharField(max_length=24)
    new_state = models.CharField(max_length=24)
    trigger = models.CharField(max_length=24)
    at = models.DateTimeField(help_text="by the clock")
    recorded_at = models.DateTimeField(help_text="by the wall")
    actor = models.CharField(max_length=100, help_text="user name, or rollout:<id>, or watchdog")
    reason = models.CharField(max_length=300, blank=True)
    gate = models.CharField(
        max_length=200, blank=True, help_text="what vouches for a move into service"
    )
    gate_record = models.ForeignKey(
        Gate,
        on_delete=models.PROTECT,
        related_name="state_changes",
        null=True,
        blank=True,
        help_text="the gate that was passed; empty where nothing was touched or somebody vouches",
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )

    class Meta:
        ordering = ("machine", "at", "pk")
        constraints = (
            models.CheckConstraint(
                condition=~models.Q(new_state="in_service") | ~models.Q(gate=""),
                name="state_change_into_service_has_gate",
            ),
        )
        indexes = (
            models.Index(fields=["machine", "at"], name="state_change_machine_at"),
            models.Index(fields=["at"], name="state_change_at"),
        )

    def __str__(self) -> str:
        return f"{self.machine}: {self.old_state} → {self.new_state}"
