"""What was done to broken machines: repairs, parts that were swapped, and what proves it."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from fleet.appendonly import AppendOnlyModel
from fleet.models.incidents import Incident
from fleet.models.inventory import Machine


class RepairKind(models.TextChoices):
    """What kind of work it was; each kind has a gate plan of its own."""

    GPU_RESET = "gpu_reset", _("GPU reset")
    NODE_REBOOT = "node_reboot", _("node reboot")
    GPU_SWAP = "gpu_swap", _("GPU swap")
    NETWORK_SWAP = "network_swap", _("network part swap")
    HOST_PART_SWAP = "host_part_swap", _("host part swap")
    THERMAL = "thermal", _("thermal work")
    FIRMWARE_CHANGE = "firmware_change", _("firmware change")
    NUMERICAL = "numerical", _("numerical error")
    NO_FAULT_FOUND = "no_fault_found", _("no fault found")
    NEW_MACHINE = "new_machine", _("new machine")


class Repair(models.Model):
    """One piece of work on one machine, from its order to its end.

    Present state; its moves are the machine's `StateChange`s and its `RepairEvent`s.
    """

    class Status(models.TextChoices):
        ORDERED = "ordered", _("ordered")
        UNDER_WAY = "under_way", _("under way")
        AT_SUPPLIER = "at_supplier", _("at the supplier")
        CLOSED = "closed", _("closed")
        CANCELLED = "cancelled", _("cancelled")

    class Outcome(models.TextChoices):
        REPAIRED = "repaired", _("repaired")
        NO_FAULT_FOUND = "no_fault_found", _("no fault found")

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="repairs")
    incident = models.ForeignKey(
        Incident, on_delete=models.PROTECT, related_name="repairs", null=True, blank=True
    )
    kind = models.CharField(
        max_length=20,
        choices=RepairKind,
        blank=True,
        help_text="empty: of a recorded repair, whose kind was not kept",
    )
    component = models.CharField(max_length=80, blank=True, help_text="kind and slot, as gpu 3")
    status = models.CharField(max_length=12, choices=Status, default=Status.ORDERED)
    ordered_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=16, choices=Outcome, blank=True)
    technician = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    technician_name = models.CharField(
        max_length=100, blank=True, help_text="as the ticket system or the supplier names them"
    )
    supplier_case = models.CharField(max_length=100, blank=True)
    ticket = models.CharField(max_length=100, blank=True, help_text="key in the ticket system")
    note = models.CharField(max_length=1000, blank=True)
    released_at = models.DateTimeField(
        null=True, blank=True, help_text="the machine's return to service after it"
    )
    watch_until = models.DateTimeField(
        null=True, blank=True, help_text="a fault from the return until then counts against it"
    )
    ineffective_since = models.DateTimeField(
        null=True, blank=True, help_text="a fault in its watch period: it counts against it"
    )

    class Meta:
        ordering = ("-ordered_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine"],
                condition=models.Q(status__in=["ordered", "under_way", "at_supplier"]),
                name="repair_open_once_per_machine",
            ),
            models.UniqueConstraint(
                fields=["ticket"], condition=~models.Q(ticket=""), name="repair_ticket_once"
            ),
        )
        indexes = (
            models.Index(fields=["machine", "closed_at"], name="repair_machine_closed"),
            models.Index(fields=["status", "ordered_at"], name="repair_status_ordered"),
            models.Index(
                fields=["watch_until"],
                condition=models.Q(ineffective_since__isnull=True),
                name="repair_watched",
            ),
            models.Index(
                fields=["supplier_case"],
                condition=~models.Q(supplier_case=""),
                name="repair_supplier_case",
            ),
        )
        permissions = (("work_repair", "Can diagnose and repair machines"),)

    def __str__(self) -> str:
        return f"{self.machine}: {self.kind}"


class RepairEvent(AppendOnlyModel):
    """One step of a repair: who did what, and when."""

    repair = models.ForeignKey(Repair, on_delete=models.PROTECT, related_name="events")
    kind = models.CharField(max_length=24)
    said = models.CharField(max_length=1000, blank=True)
    at = models.DateTimeField(help_text="by the clock")
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("repair", "at", "pk")

    def __str__(self) -> str:
        return f"{self.repair_id}: {self.kind}"


class PartSwap(AppendOnlyModel):
    """One part that left a slot and one that came into it; where a part has been is read here."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="swaps")
    repair = models.ForeignKey(
        Repair, on_delete=models.PROTECT, related_name="swaps", null=True, blank=True
    )
    kind = models.CharField(max_length=40)
    slot = models.CharField(max_length=40, blank=True)
    old_serial = models.CharField(max_length=100, blank=True, help_text="empty: was not known")
    new_serial = models.CharField(max_length=100, blank=True, help_text="empty: the slot is empty")
    old_model = models.CharField(max_length=100, blank=True)
    new_model = models.CharField(max_length=100, blank=True)
    at = models.DateTimeField()
    actor = models.CharField(max_length=100)
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("machine", "at", "pk")
        indexes = (
            models.Index(fields=["old_serial"], name="swap_old_serial"),
            models.Index(fields=["new_serial"], name="swap_new_serial"),
        )

    def __str__(self) -> str:
        return f"{self.machine} {self.kind} {self.slot}: {self.old_serial} → {self.new_serial}"
