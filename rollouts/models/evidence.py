"""The append-only records: what the engine saw and said, what people ordered, what was done."""

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models import ClockJump, Machine
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.models.rollout import Attempt, Rollout, Wave


class ScoreBlob(AppendOnlyModel):
    """Label-blind integer scores of one look, compressed, addressed by their content."""

    digest = models.CharField(max_length=64, unique=True)
    content = models.BinaryField()

    def __str__(self) -> str:
        return self.digest[:12]


class Evaluation(AppendOnlyModel):
    """All samples and verdicts of one wave at one cutoff: what the engine saw and said.

    `inputs` holds what replaying needs besides the scores, the plan and the wave's roster: seed,
    resamples, alpha, the judge's state before the look and what it was told. `digest` is that of
    the content, scores included; empty on records of before there was one. Numbers of looks are
    counted by kind.
    """

    class Kind(models.TextChoices):
        LOOK = "look"
        SURVEILLANCE = "surveillance"
        DRAW_CHECK = "draw_check"

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="evaluations")
    wave = models.ForeignKey(Wave, on_delete=models.PROTECT, related_name="evaluations")
    kind = models.CharField(max_length=12, choices=Kind, default=Kind.LOOK)
    look = models.PositiveIntegerField()
    as_of = models.DateTimeField()
    elapsed = models.FloatField()
    engine_version = models.CharField(max_length=20)
    guardrails = models.JSONField()
    flags = models.JSONField(default=list, blank=True)
    inputs = models.JSONField(default=dict)
    scores = models.ForeignKey(ScoreBlob, on_delete=models.PROTECT, related_name="evaluations")
    digest = models.CharField(max_length=64, blank=True, default="")
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("wave", "look")
        constraints = (
            models.UniqueConstraint(fields=["wave", "kind", "look"], name="evaluation_once"),
        )
        indexes = (models.Index(fields=["rollout", "as_of"], name="evaluation_rollout_as_of"),)

    def __str__(self) -> str:
        return f"{self.wave} {self.get_kind_display().lower()} {self.look}"


class Decision(AppendOnlyModel):
    """What the engine concludes, with a stable reason code and one plain sentence."""

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="decisions")
    wave = models.ForeignKey(
        Wave, null=True, blank=True, on_delete=models.PROTECT, related_name="decisions"
    )
    evaluation = models.OneToOneField(
        Evaluation, null=True, blank=True, on_delete=models.PROTECT, related_name="decision"
    )
    kind = models.CharField(max_length=12, choices=[(k.value, k.value) for k in DecisionKind])
    reason_code = models.CharField(max_length=40, choices=[(r.value, r.value) for r in Reason])
    reason = models.TextField()
    as_of = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("rollout", "as_of", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["rollout", "kind"],
                condition=models.Q(kind="complete"),
                name="decision_complete_once",
            ),
        )
        indexes = (models.Index(fields=["rollout", "-as_of"], name="decision_rollout_as_of"),)

    def __str__(self) -> str:
        return f"{self.rollout}: {self.kind} ({self.reason_code})"


class Order(AppendOnlyModel):
    """What a named person commands."""

    class Kind(models.TextChoices):
        SUBMIT = "submit"
        APPROVE = "approve"
        DENY = "deny"
        START = "start"
        PAUSE = "pause"
        RESUME = "resume"
        HALT = "halt"
        ADVANCE = "advance"
        OVERRIDE = "override"
        EXTEND = "extend"
        SKIP_WAVE = "skip_wave"
        RETRY = "retry"
        EXCLUDE = "exclude"
        RELEASE = "release"
        ROLL_BACK = "roll_back"
        CANCEL = "cancel"
        SUPERSEDE = "supersede"
        ACKNOWLEDGE = "acknowledge"

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="orders")
    kind = models.CharField(max_length=12, choices=Kind)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="orders"
    )
    second_person = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="orders_seconded",
        null=True,
        blank=True,
    )
    reason = models.TextField(blank=True)
    parameters = models.JSONField(default=dict, blank=True)
    at = models.DateTimeField(help_text="by the clock")
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("rollout", "recorded_at", "pk")

    def __str__(self) -> str:
        return f"{self.actor}: {self.kind} {self.rollout}"


class Transition(AppendOnlyModel):
    """One move of a rollout (wave empty) or of a wave, because of a decision or an order."""

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="transitions")
    wave = models.ForeignKey(
        Wave, null=True, blank=True, on_delete=models.PROTECT, related_name="transitions"
    )
    decision = models.ForeignKey(
        Decision, null=True, blank=True, on_delete=models.PROTECT, related_name="transitions"
    )
    order = models.ForeignKey(
        Order, null=True, blank=True, on_delete=models.PROTECT, related_name="transitions"
    )
    trigger = models.CharField(max_length=20)
    old_status = models.CharField(max_length=20)
    new_status = models.CharField(max_length=20)
    note = models.CharField(max_length=300, blank=True)
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("rollout", "pk")

    def __str__(self) -> str:
        subject = self.wave or self.rollout
        return f"{subject}: {self.old_status} → {self.new_status}"


class AttemptEvent(AppendOnlyModel):
    """One move of one attempt, with what was seen."""

    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="events")
    old_status = models.CharField(max_length=16)
    new_status = models.CharField(max_length=16)
    detail = models.CharField(max_length=300, blank=True)
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("attempt", "pk")

    def __str__(self) -> str:
        return f"{self.attempt_id}: {self.old_status} → {self.new_status}"


class Action(AppendOnlyModel):
    """What was asked of one machine because of a decision or an order."""

    class Kind(models.TextChoices):
        INSTALL = "install"
        ROLL_BACK = "roll_back"
        LEAVE = "leave"
        DRAIN = "drain"
        DO_NOT_REBOOT = "do_not_reboot"

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="actions")
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="actions")
    attempt = models.ForeignKey(
        Attempt, null=True, blank=True, on_delete=models.PROTECT, related_name="actions"
    )
    decision = models.ForeignKey(
        Decision, null=True, blank=True, on_delete=models.PROTECT, related_name="actions"
    )
    order = models.ForeignKey(
        Order, null=True, blank=True, on_delete=models.PROTECT, related_name="actions"
    )
    kind = models.CharField(max_length=16, choices=Kind)
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("rollout", "pk")
        indexes = (models.Index(fields=["machine", "at"], name="action_machine_at"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.machine}"


class Reminder(AppendOnlyModel):
    """A person was awaited past the deadline of a state; `number` counts how often."""

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="reminders")
    subject = models.CharField(max_length=20, help_text="rollout, or wave and its number")
    status = models.CharField(max_length=20)
    since = models.DateTimeField()
    number = models.PositiveIntegerField(help_text="from 1, one each time that the deadline passes")
    text = models.TextField()
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("rollout", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["rollout", "subject", "status", "since", "number"], name="reminder_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.rollout}: {self.text}"


class ClockHold(AppendOnlyModel):
    """A window that was open when the wall's clock was set: it widens once somebody has looked."""

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="clock_holds")
    jump = models.ForeignKey(ClockJump, on_delete=models.PROTECT, related_name="holds")
    at = models.DateTimeField()
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ("rollout", "pk")
        constraints = (models.UniqueConstraint(fields=["rollout", "jump"], name="clock_hold_once"),)

    def __str__(self) -> str:
        return f"{self.rollout}: {self.jump}"
