"""What a machine has to show before it works again: gate plans, gates, checks and results."""

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models.firmware import FirmwareBundle
from fleet.models.incidents import Incident
from fleet.models.inventory import Machine
from fleet.models.repairs import Repair, RepairKind


class GatePlan(AppendOnlyModel):
    """What a kind of repair has to prove; the newest version of a kind and level holds.

    `level` 0 is the first repair of its kind in the recurrence window; each higher level is the
    longer gate after a recurrence. `checks` are in order, each with `name`, `title`, `stage`
    (`firmware`, `focused`, `representative`), `unit`, `rule` and `needs_evidence`.
    """

    class Review(models.TextChoices):
        AUTOMATIC = "automatic"
        HUMAN = "human"
        ROLLOUT = "rollout"
        RELIABILITY = "reliability"

    kind = models.CharField(max_length=20, choices=RepairKind)
    level = models.PositiveSmallIntegerField(default=0)
    version = models.PositiveIntegerField()
    title = models.CharField(max_length=200)
    checks = models.JSONField()
    workload = models.CharField(max_length=300, help_text="representative work, in words")
    observation_hours = models.FloatField(default=0.0)
    review = models.CharField(max_length=12, choices=Review, default=Review.HUMAN)
    author = models.CharField(max_length=100)
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("kind", "level", "-version")
        constraints = (
            models.UniqueConstraint(fields=["kind", "level", "version"], name="gate_plan_once"),
        )

    def __str__(self) -> str:
        return f"{self.kind} level {self.level} v{self.version}"


class Gate(models.Model):
    """One machine's way through one plan. At most one is open per machine.

    Present state; its evidence is its `CheckResult`s and its `GateEvent`s.
    """

    class Status(models.TextChoices):
        OPEN = "open"
        OBSERVING = "observing"
        AWAITING_REVIEW = "awaiting_review"
        PASSED = "passed"
        FAILED = "failed"
        VOID = "void"

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="gates")
    plan = models.ForeignKey(GatePlan, on_delete=models.PROTECT, related_name="gates")
    repair = models.ForeignKey(
        Repair, on_delete=models.PROTECT, related_name="gates", null=True, blank=True
    )
    incident = models.ForeignKey(
        Incident, on_delete=models.PROTECT, related_name="gates", null=True, blank=True
    )
    made_for = models.CharField(
        max_length=40, blank=True, help_text="rollout:<id>/wave:<n>, of a firmware gate"
    )
    why = models.TextField(help_text="how this plan was chosen, in words")
    pattern = models.CharField(
        max_length=300, blank=True, help_text="communication pattern that showed the fault"
    )
    bundle = models.ForeignKey(
        FirmwareBundle, on_delete=models.PROTECT, related_name="gates", null=True, blank=True
    )
    bundle_why = models.CharField(max_length=300, blank=True, help_text="why this one is intended")
    partner = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    review = models.CharField(
        max_length=12, choices=GatePlan.Review, help_text="who reviews it; a recurrence asks more"
    )
    retry_of = models.OneToOneField(
        "self", on_delete=models.PROTECT, related_name="retry", null=True, blank=True
    )
    read_at = models.DateTimeField(
        null=True, blank=True, help_text="when the machine last answered a read-back"
    )
    asked_at = models.DateTimeField(null=True, blank=True, help_text="when it was last asked")
    status = models.CharField(max_length=16, choices=Status, default=Status.OPEN)
    opened_at = models.DateTimeField()
    observe_until = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    closed_why = models.CharField(max_length=500, blank=True)
    reviewer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )

    class Meta:
        ordering = ("-opened_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine"],
                condition=models.Q(status__in=["open", "observing", "awaiting_review"]),
                name="gate_open_once_per_machine",
            ),
        )
        indexes = (
            models.Index(fields=["status", "opened_at"], name="gate_status_opened"),
            models.Index(
                fields=["made_for", "status"],
                condition=~models.Q(made_for=""),
                name="gate_made_for",
            ),
        )
        permissions = (
            ("run_gate", "Can run checks of a gate"),
            ("review_gate", "Can review a gate and release the machine"),
            ("break_glass", "Can put a machine to work without its gate"),
        )

    def __str__(self) -> str:
        return f"gate {self.pk} of {self.machine}"


class GateCheck(models.Model):
    """One check of one gate: who is at it; its results are appended."""

    gate = models.ForeignKey(Gate, on_delete=models.PROTECT, related_name="checks")
    position = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=60)
    title = models.CharField(max_length=200)
    stage = models.CharField(max_length=16)
    unit = models.CharField(max_length=20, blank=True)
    rule = models.JSONField(help_text="threshold, absolute or against the fleet's own norm")
    needs_evidence = models.BooleanField(default=False)
    needs_partner = models.BooleanField(default=False, help_text="it runs over several machines")
    claimed_by = models.CharField(max_length=100, blank=True)
    claim_token = models.CharField(max_length=32, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True, help_text="by the steady clock")

    class Meta:
        ordering = ("gate", "position")
        constraints = (
            models.UniqueConstraint(fields=["gate", "position"], name="gate_check_position_once"),
            models.UniqueConstraint(fields=["gate", "name"], name="gate_check_name_once"),
        )
        indexes = (models.Index(fields=["name"], name="gate_check_name"),)

    def __str__(self) -> str:
        return f"{self.gate_id}: {self.name}"


class CheckResult(AppendOnlyModel):
    """One result of one check; the newest one counts."""

    gate_check = models.ForeignKey(GateCheck, on_delete=models.PROTECT, related_name="results")
    is_passed = models.BooleanField()
    value = models.FloatField(null=True, blank=True)
    unit = models.CharField(max_length=20, blank=True)
    threshold = models.CharField(max_length=200, help_text="as it stood, in words")
    note = models.CharField(max_length=1000, blank=True)
    reference = models.CharField(
        max_length=500, blank=True, help_text="where evidence lies that is kept elsewhere"
    )
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    source_key = models.CharField(max_length=200, blank=True, help_text="of an automation: once")
    at = models.DateTimeField(help_text="by the clock")
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("gate_check", "at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["gate_check", "source_key"],
                condition=~models.Q(source_key=""),
                name="check_result_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.gate_check_id}: {'passed' if self.is_passed else 'failed'}"


class GateEvent(AppendOnlyModel):
    """One step of a gate: opened, observation begun, sent to review, passed, failed, void."""

    gate = models.ForeignKey(Gate, on_delete=models.PROTECT, related_name="events")
    kind = models.CharField(max_length=24)
    said = models.CharField(max_length=1000, blank=True)
    at = models.DateTimeField(help_text="by the clock")
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("gate", "at", "pk")

    def __str__(self) -> str:
        return f"{self.gate_id}: {self.kind}"


class Evidence(AppendOnlyModel):
    """One file that proves something, by its digest; served as an attachment only."""

    repair = models.ForeignKey(
        Repair, on_delete=models.PROTECT, related_name="evidence", null=True, blank=True
    )
    result = models.ForeignKey(
        CheckResult, on_delete=models.PROTECT, related_name="evidence", null=True, blank=True
    )
    name = models.CharField(max_length=200)
    media_type = models.CharField(max_length=100)
    size_bytes = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    at = models.DateTimeField(help_text="by the clock")
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(repair__isnull=False) | models.Q(result__isnull=False),
                name="evidence_belongs_to_something",
            ),
        )
        indexes = (models.Index(fields=["sha256"], name="evidence_digest"),)

    def __str__(self) -> str:
        return self.name
