"""What machines claim to be: serials, UUIDs, MACs and BMC addresses, each with its time."""

from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models.inventory import Machine
from fleet.models.repairs import PartSwap


class MachineClaim(AppendOnlyModel):
    """From `since` on, the machine claims this value; until its next row of the same kind and slot.

    An empty value says that nothing is claimed from then on. The machine itself is the operator's
    slot, by name; what sits in it may change.
    """

    class Kind(models.TextChoices):
        SERIAL = "serial"
        UUID = "uuid"
        MAC = "mac"
        BMC_ADDRESS = "bmc_address"

    class Source(models.TextChoices):
        REGISTER = "register"
        PERSON = "person"
        SWAP = "swap"
        BMC = "bmc"
        HOST = "host"
        IMPORT = "import"

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="claims")
    kind = models.CharField(max_length=12, choices=Kind)
    slot = models.CharField(
        max_length=80, blank=True, help_text="of a MAC: the part that carries it, as nic/0"
    )
    value = models.CharField(max_length=200, blank=True)
    since = models.DateTimeField()
    source = models.CharField(max_length=10, choices=Source)
    actor = models.CharField(max_length=100, blank=True)
    swap = models.ForeignKey(
        PartSwap, on_delete=models.PROTECT, related_name="claims", null=True, blank=True
    )
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("machine", "kind", "slot", "since", "pk")
        indexes = (
            models.Index(fields=["kind", "value"], name="claim_kind_value"),
            models.Index(fields=["machine", "kind", "slot", "since"], name="claim_machine_part"),
        )

    def __str__(self) -> str:
        return f"{self.machine} {self.kind} {self.slot} {self.value or 'nothing'}"
