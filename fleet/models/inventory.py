"""What there is: teams, platforms, machines and their components."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from fleet import lifecycle


class Team(models.Model):
    """Who owns machines, states and rollouts."""

    name = models.CharField(max_length=100, unique=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="teams", blank=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Platform(models.Model):
    """A model line of machines."""

    name = models.CharField(max_length=100, unique=True)
    vendor = models.CharField(max_length=100, blank=True)
    accelerators = models.PositiveSmallIntegerField(default=8)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Machine(models.Model):
    """The operator's slot, by name; what sits in it are claims."""

    State: ClassVar = lifecycle.State
    #: The fields that say where a machine is.
    PLACES: ClassVar = (
        "site",
        "pool",
        "rack",
        "chassis",
        "power_domain",
        "nvlink_domain",
        "leaf",
    )

    name = models.CharField(max_length=200, unique=True)
    platform = models.ForeignKey(Platform, on_delete=models.PROTECT, related_name="machines")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT)
    serial = models.CharField(max_length=100, blank=True)
    site = models.CharField(max_length=100, blank=True)
    pool = models.CharField(max_length=100, blank=True)
    rack = models.CharField(max_length=100, blank=True)
    chassis = models.CharField(max_length=100, blank=True)
    power_domain = models.CharField(max_length=100, blank=True)
    nvlink_domain = models.CharField(max_length=100, blank=True)
    leaf = models.CharField(max_length=100, blank=True)
    job = models.CharField(max_length=100, blank=True, help_text="present job, by the scheduler")
    workload = models.CharField(max_length=100, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    scheduler_node = models.CharField(max_length=200, blank=True)
    bmc_address = models.CharField(max_length=200, blank=True)
    credential = models.CharField(max_length=200, blank=True, help_text="reference, not a secret")
    state = models.CharField(
        max_length=24,
        choices=[(state.value, state.value) for state in lifecycle.State],
        default=lifecycle.State.REGISTERED.value,
    )
    owner_role = models.CharField(max_length=24, blank=True)
    owner_team = models.ForeignKey(
        Team,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="owned",
        help_text="whose it is in this state; empty: no team takes the role here",
    )
    is_handed_over = models.BooleanField(
        default=False, help_text="to a team other than the rules name, until the role changes"
    )
    held_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="held_machines",
        help_text="who has it in hand",
    )
    held_since = models.DateTimeField(null=True, blank=True)
    next_step = models.CharField(max_length=200, blank=True)
    entered_at = models.DateTimeField()
    deadline_at = models.DateTimeField(null=True, blank=True)
    watch_until = models.DateTimeField(null=True, blank=True)
    may_take_work = models.BooleanField(default=False)
    registered_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(state__in=[state.value for state in lifecycle.State]),
                name="machine_state_known",
            ),
            models.CheckConstraint(
                condition=models.Q(may_take_work=False) | models.Q(state="in_service"),
                name="machine_works_only_in_service",
            ),
        )
        indexes = (
            models.Index(fields=["platform", "state"], name="machine_platform_state"),
            models.Index(fields=["state", "deadline_at"], name="machine_state_deadline"),
            models.Index(fields=["registered_at"], name="machine_registered_at"),
            models.Index(
                fields=["state", "job"],
                condition=models.Q(may_take_work=False),
                name="machine_takes_no_work",
            ),
            models.Index(fields=["rack"], name="machine_rack"),
            models.Index(fields=["site", "pool"], name="machine_site_pool"),
            models.Index(
                fields=["platform", "pool", "state", "may_take_work", "watch_until"],
                name="machine_capacity",
            ),
        )

    def __str__(self) -> str:
        return self.name


class Component(models.Model):
    """A part that carries firmware, in a slot of a machine."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="components")
    kind = models.CharField(max_length=40, help_text="bmc, bios, gpu, nic, nvswitch, cpld, …")
    slot = models.CharField(max_length=40, blank=True)
    model = models.CharField(max_length=100, blank=True)
    serial = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ("machine", "kind", "slot")
        constraints = (
            models.UniqueConstraint(
                fields=["machine", "kind", "slot"], name="component_once_per_slot"
            ),
        )
        indexes = (models.Index(fields=["serial"], name="component_serial"),)

    def __str__(self) -> str:
        return f"{self.machine} {self.kind}{f' {self.slot}' if self.slot else ''}"
