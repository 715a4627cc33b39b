"""Rollouts, their evidence and the bodies of orders, as the API shows and takes them."""

import base64
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.validators import UniqueValidator

from fleet.api.base import ChoiceField, StrictModelSerializer, StrictSerializer
from fleet.models import FirmwareBundle
from rollouts import roles
from rollouts.aftermath import Aftermath
from rollouts.explain import explain
from rollouts.models import Attempt, Decision, Evaluation, Order, Policy, Rollout, Wave

#: Named in the schema, since three tables have a field of this name.
ROLLOUT_STATUSES = Rollout._meta.get_field("status").choices
WAVE_STATUSES = Wave._meta.get_field("status").choices
ATTEMPT_STATUSES = Attempt._meta.get_field("status").choices
DECISION_KINDS = Decision._meta.get_field("kind").choices


class ConditionSerializer(StrictSerializer):
    """One thing that has to become true before it goes on, and whose move it is."""

    what = serializers.CharField()
    present = serializers.CharField()
    needed = serializers.CharField()
    since = serializers.DateTimeField(allow_null=True)
    who = serializers.CharField()
    due = serializers.DateTimeField(
        allow_null=True, help_text="when it comes true by itself, or somebody is reminded"
    )


class BlockedBySerializer(serializers.Serializer):
    """Adds what the row waits for."""

    blocked_by = serializers.SerializerMethodField(
        help_text="everything that it waits for now; empty when nothing is in its way"
    )

    @extend_schema_field(ConditionSerializer(many=True))
    def get_blocked_by(self, subject: Rollout | Wave | Attempt) -> list[dict[str, Any]]:
        return list(ConditionSerializer(explain(subject), many=True).data)


class RolloutSerializer(StrictModelSerializer):
    """A rollout as it stands. Its plan is frozen once it was submitted."""

    bundle_name = serializers.CharField(source="bundle", read_only=True)
    author = serializers.SlugRelatedField("username", read_only=True)
    approver = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Rollout
        exclude: ClassVar = ["due_at", "leased_until", "lease_token", "crashes"]


class OneRolloutSerializer(BlockedBySerializer, RolloutSerializer):
    """A rollout with what it waits for."""


class NewRolloutSerializer(StrictSerializer):
    """A plan to write down as a draft."""

    name = serializers.CharField(
        max_length=200, validators=[UniqueValidator(Rollout.objects.all())]
    )
    bundle = serializers.PrimaryKeyRelatedField(queryset=FirmwareBundle.objects.all())
    selector = serializers.CharField(
        max_length=1000, help_text="for example platform=dgx-h100,rack in (r1,r2)"
    )
    plan = serializers.DictField(
        required=False, help_text="follows $defs/plan of the policy schema; defaults are filled in"
    )
    policy = serializers.PrimaryKeyRelatedField(
        queryset=Policy.objects.all(),
        required=False,
        help_text="what the plan leaves out is copied from this policy",
    )
    mode = ChoiceField(Rollout.Mode.choices, required=False)
    seed = serializers.IntegerField(min_value=0, max_value=2**62, required=False)


class WaveSerializer(BlockedBySerializer, StrictModelSerializer):
    """A wave: its size, its window, where it stands and what it waits for."""

    class Meta:
        model = Wave
        exclude: ClassVar = ["rollout", "judge_state"]


class DecisionSerializer(StrictModelSerializer):
    """What the engine concluded, and from which evaluation."""

    wave = serializers.SlugRelatedField("number", read_only=True)

    class Meta:
        model = Decision
        exclude: ClassVar = ["rollout"]


class EvaluationSerializer(StrictModelSerializer):
    """What the engine saw and said at one look."""

    wave = serializers.SlugRelatedField("number", read_only=True)
    scores_digest = serializers.CharField(source="scores.digest", read_only=True)
    purity = serializers.SerializerMethodField(
        help_text="share of exposure in jobs whose machines are all in one arm; null: not known"
    )
    workload_conditions = serializers.SerializerMethodField(
        help_text="each condition of the plan in words, and whether it was met by then"
    )

    class Meta:
        model = Evaluation
        exclude: ClassVar = ["rollout", "scores", "inputs"]

    def get_workload_conditions(self, evaluation: Evaluation) -> list[dict[str, Any]]:
        conditions: list[dict[str, Any]] = evaluation.inputs.get("workload_conditions", [])
        return conditions

    def get_purity(self, evaluation: Evaluation) -> float | None:
        purity: float | None = evaluation.inputs.get("purity")
        return purity


class ReplayableEvaluationSerializer(EvaluationSerializer):
    """An evaluation with all that recomputing its verdicts needs."""

    scores = serializers.SerializerMethodField(
        help_text="the stored integer scores, compressed, as base64"
    )

    class Meta:
        model = Evaluation
        exclude: ClassVar = ["rollout"]

    def get_scores(self, evaluation: Evaluation) -> str:
        return base64.b64encode(bytes(evaluation.scores.content)).decode("ascii")


class AttemptSerializer(StrictModelSerializer):
    """One try on one machine."""

    machine = serializers.SlugRelatedField("name", read_only=True)
    wave = serializers.SlugRelatedField("number", read_only=True)

    class Meta:
        model = Attempt
        exclude: ClassVar = ["rollout", "block", "due_at", "leased_until", "lease_token"]


class OneAttemptSerializer(BlockedBySerializer, AttemptSerializer):
    """One try with what it waits for."""


class PolicySerializer(StrictModelSerializer):
    """A versioned document of guardrails and limits."""

    author = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Policy
        fields = "__all__"


class NewPolicySerializer(StrictSerializer):
    """The next version of a named policy."""

    name = serializers.CharField(max_length=100)
    document = serializers.DictField(help_text="follows $defs/plan of the policy schema")


class OrderSerializer(StrictModelSerializer):
    """What a named person commanded."""

    actor = serializers.SlugRelatedField("username", read_only=True)
    second_person = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Order
        fields = "__all__"


class MoveSerializer(StrictSerializer):
    """A move of a rollout, or of one of its waves."""

    rollout = serializers.CharField(source="rollout.name")
    wave = serializers.IntegerField(source="wave.number", default=None, help_text="null: its own")
    old_status = serializers.CharField()
    new_status = serializers.CharField()
    note = serializers.CharField()


class RehearsedSerializer(StrictSerializer):
    """An order that was not given: what it would move."""

    kind = serializers.CharField(source="order.kind")
    rollout = serializers.IntegerField(source="order.rollout_id")
    moves = MoveSerializer(many=True)
    attempts = serializers.DictField(
        child=serializers.IntegerField(), help_text="how many would go to which status"
    )


class RehearsalSerializer(StrictSerializer):
    """What would happen; nothing was written."""

    dry_run = serializers.BooleanField(default=True)
    orders = RehearsedSerializer(many=True)


class GlanceSerializer(StrictSerializer):
    """What a draft would do that was not written down; with its seed it is drawn the same way."""

    dry_run = serializers.BooleanField(default=True)
    digest = serializers.CharField()
    seed = serializers.IntegerField()
    summary = serializers.JSONField(help_text="as in a preview; `refusals` says what is against it")


# --- bodies of orders ---------------------------------------------------------------------------


class PlainSerializer(StrictSerializer):
    """An order that needs no words."""


class ClearSerializer(StrictSerializer):
    """Why a machine may be offered the bundle again."""

    reason = serializers.CharField(max_length=300)


class ReasonSerializer(StrictSerializer):
    """An order with an optional reason."""

    reason = serializers.CharField(required=False, max_length=2000)


class SubmitSerializer(StrictSerializer):
    """A plan to freeze, by the digest of the preview that was seen."""

    digest = serializers.CharField(
        required=False,
        max_length=64,
        help_text="of the preview; without it that of the last preview, if there was one",
    )


class ApproveSerializer(ReasonSerializer):
    """A signature under a plan, by the digest that was seen."""

    digest = serializers.CharField(max_length=64, help_text="the `plan_digest` that was seen")


class NeedsReasonSerializer(StrictSerializer):
    """An order that must say why."""

    reason = serializers.CharField(max_length=2000)


class SecondPersonField(serializers.SlugRelatedField):
    """Somebody who may override a verdict, by user name."""

    def __init__(self, **options: Any) -> None:
        super().__init__("username", queryset=roles.second_people(), **options)


class SecondPersonSerializer(NeedsReasonSerializer):
    """An order against a verdict: a reason and somebody else who stands for it."""

    second_person = SecondPersonField(
        help_text="user name of somebody who may override, not oneself"
    )


class AdvanceSerializer(ReasonSerializer):
    """A held wave needs both fields, an advised widen neither."""

    second_person = SecondPersonField(required=False)


class AcknowledgeSerializer(ReasonSerializer):
    """What somebody has looked at: novel signatures, or a clock that was set during a window."""

    signatures = serializers.ListField(
        child=serializers.CharField(max_length=100),
        allow_empty=False,
        max_length=1000,
        required=False,
    )
    clock = serializers.BooleanField(required=False)


class MachinesSerializer(NeedsReasonSerializer):
    """An order about machines of the rollout, by name, and why."""

    machines = serializers.ListField(
        child=serializers.CharField(max_length=200), allow_empty=False, max_length=1000
    )


class SupersedeSerializer(ReasonSerializer):
    """The newer rollout that takes this one's place."""

    by = serializers.PrimaryKeyRelatedField(
        queryset=Rollout.objects.all(), help_text="identifier of the newer rollout"
    )


class HaltAllSerializer(StrictSerializer):
    """What was halted, by one order each."""

    halted = OrderSerializer(many=True)


class WithdrawnSerializer(StrictSerializer):
    """The orders that stopped what would still have installed the bundle."""

    bundle = serializers.IntegerField()
    status = serializers.CharField()
    orders = OrderSerializer(many=True)


class StateGroupSerializer(StrictSerializer):
    """Machines in one physical state, and what is safe to do with them next."""

    state = serializers.CharField()
    count = serializers.IntegerField()
    machines = serializers.ListField(child=serializers.CharField(), help_text="the first of them")
    more = serializers.IntegerField(help_text="how many are not named")
    next_action = serializers.CharField()
    do_not_reboot = serializers.BooleanField()


class IrreversibleSerializer(StrictSerializer):
    """A machine that cannot go back, and why."""

    machine = serializers.CharField()
    why = serializers.CharField()


class AftermathSerializer(StrictSerializer):
    """Every machine of a rollout, each in one group; and who of them cannot go back."""

    machines = serializers.IntegerField()
    not_to_be_rebooted = serializers.IntegerField()
    groups = StateGroupSerializer(many=True)
    irreversible_count = serializers.IntegerField()
    irreversible = serializers.SerializerMethodField()

    @extend_schema_field(IrreversibleSerializer(many=True))
    def get_irreversible(self, found: Aftermath) -> list[dict[str, str]]:
        return [{"machine": name, "why": why} for name, why in found.irreversible]


class PooledPartSerializer(serializers.Serializer):
    """One wave's part in the pooled evidence."""

    wave = serializers.IntegerField()
    z = serializers.FloatField(help_text="of harm, positive: the canaries do worse")
    information = serializers.FloatField(help_text="planned, in machine-hours")


class PooledSerializer(serializers.Serializer):
    """One guardrail over all judged waves."""

    name = serializers.CharField()
    z = serializers.FloatField()
    p_value = serializers.FloatField(help_text="one-sided, of one look")
    waves = PooledPartSerializer(many=True)


class TriageSerializer(StrictSerializer):
    """Why a machine did not come back."""

    outcome = ChoiceField(Attempt.Triage.choices)
