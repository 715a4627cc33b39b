"""What machines report: observations, faults, recoveries. Each record counts once."""

from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models.inventory import Machine

AHEAD = "the machine's clock ran ahead of the server's: kept, but no verdict reads it"


class TelemetryBatch(models.Model):
    """One delivery of records and what became of each; a repeated key answers the same."""

    source = models.CharField(max_length=100)
    key = models.CharField(max_length=200)
    received_at = models.DateTimeField()
    sender = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    digest = models.CharField(max_length=64, help_text="of the reports as they were sent")
    accepted = models.PositiveIntegerField(default=0)
    duplicates = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    refusals = models.JSONField(default=list, blank=True, help_text="which record, and why")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["source", "key"], name="telemetry_batch_once"),
        )

    def __str__(self) -> str:
        return f"{self.source} {self.key}"


class Observation(models.Model):
    """One interval report of one machine; ages out, never edited."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="observations")
    start = models.DateTimeField()
    end = models.DateTimeField()
    in_service_seconds = models.FloatField()
    throughput = models.FloatField(null=True, blank=True, help_text="relative to nominal")
    workload = models.CharField(max_length=100, blank=True)
    job = models.CharField(max_length=100, blank=True, help_text="what it worked on, if told")
    boot_id = models.CharField(max_length=64, blank=True)
    detector = models.CharField(max_length=40, blank=True)
    source = models.CharField(max_length=100)
    source_key = models.CharField(max_length=200)
    is_ahead = models.BooleanField(default=False, help_text=AHEAD)
    received_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["source", "source_key"], name="observation_once"),
            models.CheckConstraint(
                condition=models.Q(end__gt=models.F("start")), name="observation_has_length"
            ),
            models.CheckConstraint(
                condition=models.Q(in_service_seconds__gte=0), name="observation_exposure"
            ),
        )
        indexes = (models.Index(fields=["machine", "end"], name="observation_machine_end"),)

    def __str__(self) -> str:
        return f"{self.machine} {self.start:%Y-%m-%d %H:%M}"


def validate_gap(value: float) -> None:
    """Refuse a gap shorter than a minute or longer than a week, and what is no number.

    Raises
    ------
    ValidationError
        If it is.
    """
    if not 1.0 <= value <= 7 * 24 * 60.0:  # NaN is not within either
        raise ValidationError(f"{value} minutes; 1 to {7 * 24 * 60} are taken", code="invalid")


def validate_patterns(value: Any) -> None:
    """Refuse what is no list of glob patterns.

    Raises
    ------
    ValidationError
        If a word alone is given, or a list with something else in it.
    """
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ValidationError(
            f'{value!r} is no list of patterns; write ["xid.48"], or [] for none', code="invalid"
        )


class FaultSignature(models.Model):
    """The catalogue: what kind of fault a signature is. Unknown ones are added as unknown."""

    class Severity(models.TextChoices):
        INFO = "info"
        MINOR = "minor"
        MAJOR = "major"
        CRITICAL = "critical"

    class Kind(models.TextChoices):
        HARD = "hard"
        SOFT = "soft"
        NOT_COUNTED = "not_counted"
        UNKNOWN = "unknown"

    class TakesOut(models.TextChoices):
        NEVER = "never"
        AFTER_JOB = "after_job"
        AT_ONCE = "at_once"

    name = models.CharField(max_length=100, unique=True)
    family = models.CharField(max_length=60, blank=True)
    title = models.CharField(max_length=200, blank=True)
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.MAJOR)
    kind = models.CharField(max_length=12, choices=Kind, default=Kind.UNKNOWN)
    action = models.CharField(max_length=100, blank=True)
    components = models.JSONField(default=list, blank=True)
    is_unrecoverable = models.BooleanField(default=False)
    gap_minutes = models.FloatField(
        default=15.0,
        validators=[validate_gap],
        help_text="faults of its family closer than this are one incident",
    )
    sympathetic_to = models.JSONField(
        default=list,
        blank=True,
        validators=[validate_patterns],
        help_text="patterns of the signatures that it only accompanies",
    )
    takes_out = models.CharField(
        max_length=12,
        choices=TakesOut,
        blank=True,
        help_text="whether such a fault takes its machine out; empty: by severity and kind",
    )
    first_seen_at = models.DateTimeField(
        null=True, blank=True, help_text="of an unknown one: the first fault that carried it"
    )

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(gap_minutes__gt=0), name="signature_gap_positive"
            ),
        )

    def __str__(self) -> str:
        return self.name


class Fault(AppendOnlyModel):
    """One fault event of one machine."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="faults")
    time = models.DateTimeField()
    signature = models.ForeignKey(FaultSignature, on_delete=models.PROTECT, related_name="faults")
    severity = models.CharField(max_length=10, choices=FaultSignature.Severity)
    component = models.CharField(max_length=80, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    job = models.CharField(max_length=100, blank=True)
    source = models.CharField(max_length=100)
    source_key = models.CharField(max_length=200)
    attributes = models.JSONField(default=dict, blank=True)
    is_ahead = models.BooleanField(default=False, help_text=AHEAD)
    received_at = models.DateTimeField()

    class Meta:
        ordering = ("time", "pk")
        constraints = (models.UniqueConstraint(fields=["source", "source_key"], name="fault_once"),)
        indexes = (
            models.Index(fields=["machine", "time"], name="fault_machine_time"),
            models.Index(fields=["time"], name="fault_time"),
        )

    def __str__(self) -> str:
        return f"{self.machine} {self.signature} {self.time:%Y-%m-%d %H:%M}"


class Recovery(models.Model):
    """One interruption of a job's work on a machine and how it came back.

    `recovered_at` is empty while the interruption is open. Its end is a second row with the same
    source key, so nothing is edited; readers leave out an open row that has a closed one.
    """

    class Path(models.TextChoices):
        CONTINUED = "continued"
        REPLICA_RESTARTED = "replica_restarted"
        CHECKPOINT = "job_restarted_from_checkpoint"
        JOB_LOST = "job_lost"

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="recoveries")
    job = models.CharField(max_length=100, blank=True)
    time = models.DateTimeField()
    recovered_at = models.DateTimeField(null=True, blank=True)
    path = models.CharField(max_length=40, choices=Path, blank=True)
    recovery_seconds = models.FloatField(null=True, blank=True)
    repeated_seconds = models.FloatField(null=True, blank=True)
    source = models.CharField(max_length=100)
    source_key = models.CharField(max_length=200)
    is_ahead = models.BooleanField(default=False, help_text=AHEAD)
    received_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["source", "source_key"],
                condition=models.Q(recovered_at__isnull=True),
                name="recovery_open_once",
            ),
            models.UniqueConstraint(
                fields=["source", "source_key"],
                condition=models.Q(recovered_at__isnull=False),
                name="recovery_closed_once",
            ),
            models.CheckConstraint(
                condition=models.Q(recovered_at__isnull=True)
                | models.Q(recovered_at__gte=models.F("time")),
                name="recovery_not_before_fault",
            ),
            models.CheckConstraint(
                condition=models.Q(recovery_seconds__isnull=True)
                | models.Q(recovery_seconds__gte=0),
                name="recovery_seconds_not_negative",
            ),
        )
        indexes = (models.Index(fields=["machine", "time"], name="recovery_machine_time"),)

    def __str__(self) -> str:
        return f"{self.machine} {self.path or 'open'} {self.time:%Y-%m-%d %H:%M}"


class CollectorCursor(models.Model):
    """How far one collector has come, and which worker is at it.

    `collected_until` is by the clock; the lease is by the wall. Whoever changes the token owns
    the next steps, so a worker that lost its lease cannot move the cursor.
    """

    collector = models.CharField(max_length=200, unique=True, help_text="dotted path")
    collected_until = models.DateTimeField()
    leased_until = models.DateTimeField(null=True, blank=True)
    lease_token = models.CharField(max_length=32, blank=True)

    def __str__(self) -> str:
        return f"{self.collector} until {self.collected_until:%Y-%m-%d %H:%M:%S}"
