"""The plan and its present state: policy, rollout, assignment, waves, attempts."""

from enum import StrEnum
from typing import Self

from django.conf import settings
from django.db import models

from fleet.models import FirmwareBundle, Machine
from rollouts import lifecycle


def _choices(statuses: type[StrEnum]) -> list[tuple[str, str]]:
    return [(status.value, status.value) for status in statuses]


class Policy(models.Model):
    """A versioned document of guardrails and limits that plans copy."""

    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField()
    document = models.JSONField()
    digest = models.CharField(max_length=64)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("name", "-version")
        constraints = (
            models.UniqueConstraint(fields=["name", "version"], name="policy_version_once"),
        )

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Rollout(models.Model):
    """One bundle to one population, by a plan that is frozen at submission.

    `due_at` (by the clock) tells the sweep when the rollout wants to be looked at; a lease (by
    the wall) says that a worker is at it. `epoch` fences attempts: a halt raises it, and an
    attempt of an older epoch never starts.
    """

    class Mode(models.TextChoices):
        OBSERVE = "observe"
        ADVISE = "advise"
        AUTOMATIC = "automatic"

    class Kind(models.TextChoices):
        UPDATE = "update"
        ROLL_BACK = "roll_back"

    name = models.CharField(max_length=200, unique=True)
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.UPDATE)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    bundle = models.ForeignKey(FirmwareBundle, on_delete=models.PROTECT, related_name="rollouts")
    selector = models.CharField(max_length=1000, help_text="platform=dgx-h100,rack in (r1,r2)")
    mode = models.CharField(max_length=10, choices=Mode, default=Mode.AUTOMATIC)
    policy = models.ForeignKey(Policy, null=True, blank=True, on_delete=models.PROTECT)
    plan = models.JSONField(help_text="frozen at submission")
    plan_digest = models.CharField(max_length=64, blank=True)
    seed = models.PositiveBigIntegerField()
    status = models.CharField(
        max_length=20,
        choices=_choices(lifecycle.Status),
        default=lifecycle.Status.DRAFT.value,
    )
    epoch = models.PositiveIntegerField(default=0)
    is_overridden = models.BooleanField(default=False)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="rollouts_written"
    )
    approver = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="rollouts_approved",
        null=True,
        blank=True,
    )
    created_at = models.DateTimeField()
    submitted_at = models.DateTimeField(null=True, blank=True)
    approved_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True, help_text="surveillance starts")
    finished_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True)
    lease_token = models.CharField(max_length=32, blank=True)
    crashes = models.PositiveSmallIntegerField(
        default=0, help_text="times a worker took the rollout and did not hand it back"
    )

    class Meta:
        ordering = ("-created_at",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(status__in=[status.value for status in lifecycle.Status]),
                name="rollout_status_known",
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=["draft", "cancelled"]) | ~models.Q(plan_digest=""),
                name="rollout_submitted_has_digest",
            ),
        )
        indexes = (
            models.Index(
                fields=["due_at"],
                condition=models.Q(due_at__isnull=False),
                name="rollout_due",
            ),
        )
        permissions = (
            ("halt_rollout", "May halt any rollout"),
            ("approve_rollout", "May approve a plan that somebody else wrote"),
            ("operate_rollout", "May start, pause, resume and steer rollouts"),
            ("override_rollout", "May widen past a verdict"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def actor(self) -> str:
        """The name under which the rollout drains and moves machines."""
        return f"rollout:{self.pk}"


class Preview(models.Model):
    """What a draft would do, as somebody saw it: the promise that submitting by its digest keeps.

    `drawn_as_of` is the time up to which faults decide a machine's stratum. Later previews of the
    draft keep it, so that only a change of the fleet or of the plan changes the digest.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="previews")
    digest = models.CharField(max_length=64)
    made_at = models.DateTimeField()
    drawn_as_of = models.DateTimeField()
    summary = models.JSONField(help_text="what people read; its lists are bounded")
    members = models.BinaryField(help_text="everybody in the drawn order, compressed")

    class Meta:
        ordering = ("rollout", "-made_at", "-pk")
        constraints = (
            models.UniqueConstraint(fields=["rollout", "digest"], name="preview_digest_once"),
        )

    def __str__(self) -> str:
        return f"{self.rollout} preview {self.digest[:12]}"


class Wave(models.Model):
    """A share of the population, with an observation window and a deadline."""

    class Kind(models.TextChoices):
        CANARY = "canary"
        RELEASE = "release"

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="waves")
    number = models.PositiveSmallIntegerField(help_text="from 1")
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.CANARY)
    allows_smoke = models.BooleanField(default=False)
    size = models.PositiveIntegerField()
    window_hours = models.FloatField()
    status = models.CharField(
        max_length=12,
        choices=_choices(lifecycle.WaveStatus),
        default=lifecycle.WaveStatus.PENDING.value,
    )
    forecast = models.JSONField(default=dict, blank=True, help_text="the planner's word")
    started_at = models.DateTimeField(null=True, blank=True)
    clock_start = models.DateTimeField(null=True, blank=True, help_text="of the first block")
    window_end = models.DateTimeField(null=True, blank=True)
    extension_end = models.DateTimeField(null=True, blank=True)
    is_extended = models.BooleanField(default=False)
    looks = models.PositiveIntegerField(default=0)
    next_look_at = models.DateTimeField(null=True, blank=True)
    judge_state = models.JSONField(default=dict, blank=True, help_text="carried between looks")
    is_kept_apart = models.BooleanField(
        default=False, help_text="the scheduler keeps the jobs of its arms apart"
    )
    reserved_until = models.DateTimeField(
        null=True, blank=True, help_text="end of its reservation at the scheduler; renewed in time"
    )
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("rollout", "number")
        constraints = (
            models.UniqueConstraint(fields=["rollout", "number"], name="wave_once"),
            models.CheckConstraint(
                condition=models.Q(status__in=[status.value for status in lifecycle.WaveStatus]),
                name="wave_status_known",
            ),
            models.CheckConstraint(
                condition=models.Q(window_hours__gte=0), name="wave_window_not_negative"
            ),
        )

    def __str__(self) -> str:
        return f"{self.rollout} wave {self.number}"


class Assignment(models.Model):
    """A unit's place in the random order of its stratum, drawn once; `wave` is set when treated.

    Rows are per machine; machines of one placement unit share `unit`, `stratum` and `position`.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="assignments")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="assignments")
    machine_name = models.CharField(max_length=200)
    unit = models.CharField(max_length=200)
    stratum = models.CharField(max_length=300)
    position = models.PositiveIntegerField()
    planned_wave = models.PositiveSmallIntegerField(help_text="the release wave for the hold-back")
    is_hold_back = models.BooleanField(default=False)
    wave = models.ForeignKey(
        Wave, null=True, blank=True, on_delete=models.PROTECT, related_name="treated"
    )
    previous_versions = models.JSONField(default=dict, blank=True)
    irreversible = models.CharField(
        max_length=300, blank=True, help_text="why the machine could not go back; empty: it could"
    )
    exclusion = models.ForeignKey(
        "rollouts.Order",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="excluded",
        help_text="the order that leaves the machine alone; it stays in its arm",
    )

    class Meta:
        ordering = ("rollout", "stratum", "position")
        constraints = (
            models.UniqueConstraint(fields=["rollout", "machine"], name="assignment_once"),
        )
        indexes = (
            models.Index(fields=["rollout", "planned_wave"], name="assignment_rollout_wave"),
        )

    def __str__(self) -> str:
        return f"{self.machine_name} in {self.rollout}"


class Block(models.Model):
    """An install batch of a wave: the clock of both arms starts when its last canary is in."""

    wave = models.ForeignKey(Wave, on_delete=models.PROTECT, related_name="blocks")
    number = models.PositiveSmallIntegerField(help_text="from 1")
    started_at = models.DateTimeField(null=True, blank=True)
    clock_start = models.DateTimeField(null=True, blank=True, help_text="burn-in included")

    class Meta:
        ordering = ("wave", "number")
        constraints = (models.UniqueConstraint(fields=["wave", "number"], name="block_once"),)

    def __str__(self) -> str:
        return f"{self.wave} block {self.number}"


class Membership(models.Model):
    """The frozen roster of a wave: who is canary, who control, in which block."""

    class Arm(models.TextChoices):
        CANARY = "canary"
        CONTROL = "control"

    wave = models.ForeignKey(Wave, on_delete=models.PROTECT, related_name="members")
    block = models.ForeignKey(Block, on_delete=models.PROTECT, related_name="members")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="+")
    unit = models.CharField(max_length=200)
    stratum = models.CharField(max_length=300)
    arm = models.CharField(max_length=8, choices=Arm)

    class Meta:
        ordering = ("wave", "machine")
        constraints = (models.UniqueConstraint(fields=["wave", "machine"], name="member_once"),)

    def __str__(self) -> str:
        return f"{self.machine} {self.arm} of {self.wave}"


class AttemptQuerySet(models.QuerySet["Attempt"]):
    """Attempts, and which of them are evidence of an install."""

    def first_tries(self) -> Self:
        """Leave out what followed a failure of the same machine, unless it ended in a brick.

        An install that failed stays a failure, however often it is tried again: else retrying
        would thin the failures out.
        """
        earlier = Attempt.objects.filter(
            rollout=models.OuterRef("rollout"),
            machine=models.OuterRef("machine"),
            number__lt=models.OuterRef("number"),
            status__in=sorted(status.value for status in lifecycle.FAILURES),
        )
        is_first = ~models.Exists(earlier)
        return self.filter(is_first | models.Q(triage=Attempt.Triage.BRICKED))


class Attempt(models.Model):
    """One try at installing a bundle on one machine."""

    class Triage(models.TextChoices):
        RECOVERED = "recovered"
        COINCIDENT_HARDWARE = "coincident_hardware"
        BRICKED = "bricked"

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="attempts")
    wave = models.ForeignKey(Wave, on_delete=models.PROTECT, related_name="attempts")
    block = models.ForeignKey(Block, on_delete=models.PROTECT, related_name="attempts")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveSmallIntegerField(default=1)
    epoch = models.PositiveIntegerField()
    targets = models.JSONField(help_text="[{kind, version}] in order")
    status = models.CharField(
        max_length=16,
        choices=_choices(lifecycle.AttemptStatus),
        default=lifecycle.AttemptStatus.QUEUED.value,
    )
    triage = models.CharField(max_length=20, choices=Triage, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    forecast_at = models.DateTimeField(
        null=True, blank=True, help_text="of a deferred one: when it may start, as far as is known"
    )
    boot_id_before = models.CharField(max_length=64, blank=True)
    steps = models.JSONField(
        default=dict, blank=True, help_text="what has been done per image, and what stood before"
    )
    drained_at = models.DateTimeField(
        null=True, blank=True, help_text="its work has ended: it may be activated with its domain"
    )
    readings = models.PositiveSmallIntegerField(default=0, help_text="good read-backs in a row")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True, help_text="of the present step")
    finished_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True)
    lease_token = models.CharField(max_length=32, blank=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering = ("rollout", "wave", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine"],
                condition=models.Q(status__in=sorted(s.value for s in lifecycle.IN_FLIGHT)),
                name="attempt_one_in_flight_per_machine",
            ),
            models.UniqueConstraint(
                fields=["rollout", "machine", "number"], name="attempt_number_once"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=[s.value for s in lifecycle.AttemptStatus]),
                name="attempt_status_known",
            ),
        )
        indexes = (
            models.Index(
                fields=["due_at"],
                condition=models.Q(due_at__isnull=False),
                name="attempt_due",
            ),
            models.Index(fields=["wave", "status"], name="attempt_wave_status"),
            models.Index(fields=["finished_at"], name="attempt_finished_at"),
        )

    def __str__(self) -> str:
        return f"attempt {self.number} on {self.machine}: {self.status}"
