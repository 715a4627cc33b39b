"""What went wrong and what it cost the work: incidents, and their impact on jobs."""

from django.conf import settings
from django.db import models

from fleet import goodput
from fleet.appendonly import AppendOnlyModel
from fleet.models.changes import Change
from fleet.models.firmware import FirmwareBundle
from fleet.models.inventory import Machine
from fleet.models.telemetry import Fault, FaultSignature


class Incident(models.Model):
    """A coalesced episode on one machine, followed from its first fault to its end.

    What is said about it (diagnosis, cause, change, supplier case) is present state; each word is
    an `IncidentEvent`. A sympathetic code is an incident of its own with a `parent`.
    """

    class Cause(models.TextChoices):
        UNKNOWN = "unknown"
        HARDWARE = "hardware"
        FIRMWARE = "firmware"
        SETTING = "setting"
        SOFTWARE = "software"
        NETWORK = "network"
        FACILITY = "facility"
        OPERATOR = "operator"
        NO_FAULT_FOUND = "no_fault_found"

    class Confidence(models.TextChoices):
        LOW = "low"
        MEDIUM = "medium"
        HIGH = "high"

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="incidents")
    family = models.CharField(max_length=60, help_text="of its signatures; or the signature alone")
    signature = models.ForeignKey(
        FaultSignature, on_delete=models.PROTECT, related_name="incidents", help_text="the first"
    )
    component = models.CharField(max_length=80, blank=True)
    severity = models.CharField(max_length=10, choices=FaultSignature.Severity, help_text="worst")
    kind = models.CharField(max_length=12, choices=FaultSignature.Kind, help_text="worst")
    opened_at = models.DateTimeField(help_text="its first fault, by the clock")
    last_fault_at = models.DateTimeField()
    fault_count = models.PositiveIntegerField(default=1)
    closed_at = models.DateTimeField(null=True, blank=True)
    detector = models.CharField(max_length=40, help_text="version of the rules that made it")
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, related_name="sympathetic", null=True, blank=True
    )
    merged_into = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        related_name="merged",
        null=True,
        blank=True,
        help_text="a fault that came late closed the gap to an earlier one; this one is part of it",
    )
    diagnosis = models.CharField(max_length=1000, blank=True)
    confidence = models.CharField(max_length=8, choices=Confidence, blank=True)
    repair_kind = models.CharField(
        max_length=20, blank=True, help_text="what the diagnosis asks for"
    )
    cause = models.CharField(max_length=16, choices=Cause, default=Cause.UNKNOWN)
    change = models.ForeignKey(
        Change, on_delete=models.PROTECT, related_name="incidents", null=True, blank=True
    )
    bundle = models.ForeignKey(
        FirmwareBundle, on_delete=models.PROTECT, related_name="incidents", null=True, blank=True
    )
    supplier_case = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ("-opened_at", "-pk")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(last_fault_at__gte=models.F("opened_at")),
                name="incident_last_not_before_first",
            ),
            models.CheckConstraint(
                condition=models.Q(closed_at__isnull=True)
                | models.Q(closed_at__gte=models.F("opened_at")),
                name="incident_not_closed_before_opened",
            ),
            models.CheckConstraint(
                condition=models.Q(merged_into__isnull=True) | models.Q(closed_at__isnull=False),
                name="incident_merged_is_closed",
            ),
        )
        indexes = (
            models.Index(fields=["machine", "family", "last_fault_at"], name="incident_series"),
            models.Index(fields=["opened_at"], name="incident_opened"),
            models.Index(fields=["family", "opened_at"], name="incident_family_opened"),
            models.Index(
                fields=["machine"],
                condition=models.Q(closed_at__isnull=True),
                name="incident_open",
            ),
            models.Index(
                fields=["supplier_case"],
                condition=~models.Q(supplier_case=""),
                name="incident_supplier_case",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine}: {self.family} {self.opened_at:%Y-%m-%d %H:%M}"


class IncidentCursor(models.Model):
    """How far the faults have been put into incidents; one row, and the lock of who does it."""

    done_to = models.PositiveBigIntegerField(default=0, help_text="key of a fault")
    checked_at = models.DateTimeField(
        null=True, blank=True, help_text="when faults before it were looked for last"
    )

    def __str__(self) -> str:
        return f"up to fault {self.done_to}"


class IncidentFault(AppendOnlyModel):
    """Which incident a fault belongs to; a fault belongs to one."""

    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="members")
    fault = models.OneToOneField(Fault, on_delete=models.PROTECT, related_name="membership")

    def __str__(self) -> str:
        return f"{self.fault} in {self.incident_id}"


class IncidentEvent(AppendOnlyModel):
    """One word about an incident: who said what, and when."""

    class Kind(models.TextChoices):
        OPENED = "opened"
        DIAGNOSED = "diagnosed"
        CAUSE_NAMED = "cause_named"
        CHANGE_LINKED = "change_linked"
        CASE_OPENED = "case_opened"
        NOTE = "note"
        ATTACHED = "attached"
        MERGED = "merged"
        REOPENED = "reopened"
        CLOSED = "closed"

    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="events")
    kind = models.CharField(max_length=16, choices=Kind)
    said = models.CharField(max_length=1000, blank=True)
    at = models.DateTimeField(help_text="by the clock")
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("incident", "at", "pk")

    def __str__(self) -> str:
        return f"{self.incident_id}: {self.kind}"


class JobKind(models.TextChoices):
    """What a job does; goodput is told apart by it."""

    PRE_TRAINING = "pre_training"
    REINFORCEMENT_LEARNING = "reinforcement_learning"
    FINE_TUNING = "fine_tuning"
    INFERENCE = "inference"
    OTHER = "other"


class JobImpact(AppendOnlyModel):
    """What an incident did to one job's work. A correction is a new row that names the old one.

    `accelerator_hours_lost` follows the formula that `formula` names; it is empty where what the
    formula needs was not recorded. Without an incident nothing that a machine told explains it,
    and `cause` is what its source says.
    """

    class Outcome(models.TextChoices):
        CONTINUED = "continued"
        DEGRADED = "degraded"
        REPLICA_RESTARTED = "replica_restarted"
        CHECKPOINT = "job_restarted_from_checkpoint"
        JOB_LOST = "job_lost"
        NO_JOB = "no_job"

    incident = models.ForeignKey(
        Incident, on_delete=models.PROTECT, related_name="impacts", null=True, blank=True
    )
    machine = models.ForeignKey(
        Machine,
        on_delete=models.PROTECT,
        related_name="impacts",
        null=True,
        blank=True,
        help_text="where it was seen; empty: its source named none",
    )
    cause = models.CharField(
        max_length=16, choices=Incident.Cause, blank=True, help_text="by its source"
    )
    job = models.CharField(max_length=100, blank=True)
    job_kind = models.CharField(
        max_length=24, choices=JobKind, default="", blank=True, help_text="empty: not told"
    )
    outcome = models.CharField(max_length=32, choices=Outcome)
    fault_at = models.DateTimeField()
    detected_at = models.DateTimeField(null=True, blank=True)
    resumed_at = models.DateTimeField(
        null=True, blank=True, help_text="first productive step; empty: not yet"
    )
    replicas_affected = models.PositiveIntegerField(null=True, blank=True)
    replicas_total = models.PositiveIntegerField(null=True, blank=True)
    accelerators = models.PositiveIntegerField(null=True, blank=True, help_text="of the whole job")
    recovery_seconds = models.FloatField(
        null=True, blank=True, help_text="where it is not resumed less fault"
    )
    stall_seconds = models.FloatField(
        null=True, blank=True, help_text="how long all replicas stood still"
    )
    repeated_seconds = models.FloatField(null=True, blank=True)
    repeated_steps = models.PositiveIntegerField(null=True, blank=True)
    slowdown = models.FloatField(
        null=True, blank=True, help_text="share of throughput lost while degraded"
    )
    accelerator_hours_lost = models.FloatField(null=True, blank=True)
    formula = models.CharField(max_length=40, blank=True)
    caused_by = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        related_name="pre_empted",
        null=True,
        blank=True,
        help_text="the impact whose job took this one's place: second-order",
    )
    corrects = models.OneToOneField(
        "self", on_delete=models.PROTECT, related_name="corrected_by", null=True, blank=True
    )
    source = models.CharField(max_length=100)
    source_key = models.CharField(max_length=200)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("fault_at", "pk")
        constraints = (
            models.UniqueConstraint(fields=["source", "source_key"], name="impact_once"),
            models.CheckConstraint(
                condition=models.Q(resumed_at__isnull=True)
                | models.Q(resumed_at__gte=models.F("fault_at")),
                name="impact_not_resumed_before_fault",
            ),
            models.CheckConstraint(
                condition=models.Q(replicas_affected__isnull=True)
                | models.Q(replicas_affected__lte=models.F("replicas_total")),
                name="impact_replicas_within_total",
            ),
            models.CheckConstraint(
                condition=models.Q(incident__isnull=True) | models.Q(cause=""),
                name="impact_cause_is_the_incidents",
            ),
        )
        indexes = (
            models.Index(fields=["fault_at"], name="impact_fault_at"),
            models.Index(fields=["job", "fault_at"], name="impact_job_fault_at"),
        )

    def __str__(self) -> str:
        return f"{self.job or 'no job'}: {self.outcome}"

    def interruption(self) -> goodput.Interruption:
        """Return what the formulas need of it."""
        recovery = self.recovery_seconds
        if recovery is None and self.resumed_at is not None:
            recovery = (self.resumed_at - self.fault_at).total_seconds()
        return goodput.Interruption(
            outcome=self.outcome,
            accelerators=self.accelerators,
            recovery_seconds=recovery,
            repeated_seconds=self.repeated_seconds,
            stall_seconds=self.stall_seconds,
            replicas_affected=self.replicas_affected,
            replicas_total=self.replicas_total,
            slowdown=self.slowdown,
        )

    @property
    def unknown_because(self) -> str:
        """Say why its loss is not known; nothing where it is."""
        if self.accelerator_hours_lost is not None:
            return ""
        return goodput.accelerator_hours_lost(self.interruption()).reason


class ImpactCursor(models.Model):
    """How far interruptions have been put down as impacts; one row, and the lock of who does it."""

    done_to = models.PositiveBigIntegerField(default=0, help_text="key of an interruption")

    def __str__(self) -> str:
        return f"up to interruption {self.done_to}"
