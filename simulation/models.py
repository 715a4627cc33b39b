"""The virtual fleet's tables: its truth, which the product never reads."""

from django.db import models

from fleet.models import Machine
from simulation.orders import Outcome


class VirtualFleet(models.Model):
    """A seed, the truth about a fleet, and the instant from which its ticks are counted.

    There is one. The lease (by the wall) says that a worker is at its technicians' work.
    """

    seed = models.PositiveBigIntegerField()
    parameters = models.JSONField()
    origin = models.DateTimeField()
    purpose = models.CharField(max_length=40, help_text="what made it: demo, up, test")
    notes = models.JSONField(default=dict, blank=True, help_text="the driver's own words")
    created_at = models.DateTimeField()
    leased_until = models.DateTimeField(null=True, blank=True)
    lease_token = models.CharField(max_length=32, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=models.Q(pk=1), name="virtual_fleet_is_one_row"),
        )

    def __str__(self) -> str:
        return f"virtual fleet of seed {self.seed}"


class VirtualMachine(models.Model):
    """What stands behind one of the product's machines.

    `versions` is what it ran at the origin; what it runs since follows from its orders.
    """

    fleet = models.ForeignKey(VirtualFleet, on_delete=models.PROTECT, related_name="machines")
    machine = models.OneToOneField(Machine, on_delete=models.PROTECT, related_name="+")
    index = models.PositiveIntegerField()
    versions = models.JSONField(help_text="kind to version, at the origin")
    fault_multiplier = models.FloatField()
    throughput_level = models.FloatField()
    is_lemon = models.BooleanField(default=False)
    drains = models.JSONField(default=dict, blank=True, help_text="reason to its since")
    idle_at = models.DateTimeField(null=True, blank=True)
    features = models.JSONField(default=dict, blank=True, help_text="reason to the group's name")
    looked_at = models.DateTimeField(
        null=True, blank=True, help_text="when a technician last tried to take the machine on"
    )
    foreign_drain = models.JSONField(
        default=dict, blank=True, help_text="owner, reason and since of somebody else's drain"
    )

    class Meta:
        ordering = ("fleet", "index")
        constraints = (
            models.UniqueConstraint(fields=["fleet", "index"], name="virtual_machine_once"),
        )

    def __str__(self) -> str:
        return f"virtual {self.machine}"


class VirtualOrder(models.Model):
    """One step that the virtual BMC took, with every instant of it; see `orders`.

    Staging writes `versions_after` aside; an activation makes it run from `up_at` on, which is
    filled in later only where a technician brought the machine back.
    """

    class Step(models.TextChoices):
        STAGE = "stage"
        ACTIVATE = "activate"

    machine = models.ForeignKey(VirtualMachine, on_delete=models.PROTECT, related_name="orders")
    key = models.CharField(max_length=200, unique=True)
    ordinal = models.PositiveIntegerField()
    step = models.CharField(max_length=10, choices=Step, default=Step.ACTIVATE)
    boots_host = models.BooleanField(default=True)
    outcome = models.CharField(max_length=16, choices=[(o.value, o.value) for o in Outcome])
    versions_after = models.JSONField()
    taken_at = models.DateTimeField()
    staged_at = models.DateTimeField()
    down_at = models.DateTimeField(null=True, blank=True)
    up_at = models.DateTimeField(null=True, blank=True)
    fell_back_at = models.DateTimeField(null=True, blank=True)
    by_hand_at = models.DateTimeField(null=True, blank=True)
    is_repaired_by_hand = models.BooleanField(default=False)

    class Meta:
        ordering = ("machine", "ordinal")
        constraints = (
            models.UniqueConstraint(fields=["machine", "ordinal"], name="virtual_order_once"),
            models.CheckConstraint(
                condition=models.Q(up_at__isnull=True)
                | models.Q(down_at__isnull=False, up_at__gt=models.F("down_at")),
                name="virtual_order_up_after_down",
            ),
        )
        indexes = (models.Index(fields=["by_hand_at"], name="virtual_order_by_hand"),)

    def __str__(self) -> str:
        return f"order {self.ordinal} on {self.machine}: {self.outcome}"


class VirtualJob(models.Model):
    """One job of the virtual scheduler: where it runs, until when, and what it says of that."""

    fleet = models.ForeignKey(VirtualFleet, on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=100, unique=True)
    partition = models.CharField(max_length=100)
    ordinal = models.PositiveIntegerField(help_text="within its partition")
    kind = models.CharField(max_length=100)
    owner = models.CharField(max_length=100)
    machines = models.JSONField(help_text="indices of the fleet's machines")
    started_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="in truth")
    expected_end = models.DateTimeField(help_text="as the scheduler forecasts it")

    class Meta:
        ordering = ("fleet", "started_at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["fleet", "partition", "ordinal"], name="virtual_job_once"
            ),
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("started_at")),
                name="virtual_job_has_length",
            ),
        )
        indexes = (models.Index(fields=["ends_at"], name="virtual_job_end"),)

    def __str__(self) -> str:
        return f"{self.name} on {len(self.machines)} machines"
