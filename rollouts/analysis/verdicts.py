"""What the analysis says: verdicts, estimates, evaluations and the recommendation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rollouts.analysis.policy import Metric


class Verdict(StrEnum):
    """One guardrail's verdict at one look; anything but `not_worse` never widens."""

    NOT_WORSE = "not_worse"
    HARMFUL = "harmful"
    INCONCLUSIVE = "inconclusive"
    NO_DATA = "no_data"


class DecisionKind(StrEnum):
    """What the engine concludes for a wave or a rollout."""

    WIDEN = "widen"
    HOLD = "hold"
    HALT = "halt"
    ROLL_BACK = "roll_back"
    COMPLETE = "complete"


class Reason(StrEnum):
    """Stable reason codes of decisions."""

    NOT_WORSE = "not_worse"
    SMOKE_ONLY = "smoke_only"
    HARMFUL = "harmful"
    HARD_STOP = "hard_stop"
    EVIDENCE_OPEN = "evidence_open"
    WINDOW_OPEN = "window_open"
    EXTENDED = "extended"
    INCONCLUSIVE = "inconclusive"
    NO_DATA = "no_data"
    REVIEW = "review"
    ENVIRONMENT = "environment"
    INTERFERENCE = "interference"
    BLOCKED = "blocked"
    RELEASED = "released"
    SURVEILLANCE_OVER = "surveillance_over"
    ON_HALT = "on_halt"
    EVALUATION_CRASHES = "evaluation_crashes"


@dataclass(frozen=True)
class ArmCounts:
    """What one arm contributed: machines at risk, distinct raw events, machine-hours."""

    machines: int
    events: int | None
    exposure_hours: float


@dataclass(frozen=True)
class Interval:
    """Limits of an interval; None where no limit exists (unbounded or not estimable)."""

    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True)
class GuardrailEvaluation:
    """One guardrail at one look.

    `estimate` with `repeated` (which agrees with the verdict under repeated looks) and the plain
    `fixed_look` interval; `unit` is `ratio` or `difference`. `is_decidable` is None where the
    planner was not asked. `shown` is sticky: non-inferiority was shown at this or an earlier
    checkpoint; `crossed` is sticky too. `details` holds JSON-safe extras, e.g. per-workload
    figures.
    """

    name: str
    metric: Metric
    verdict: Verdict
    unit: str
    estimate: float | None
    repeated: Interval
    fixed_look: Interval
    canary: ArmCounts
    control: ArmCounts
    reason: str
    required: bool
    is_decidable: bool | None
    crossed: bool
    shown: bool
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommendation:
    """One decision with a stable reason code and one plain sentence."""

    kind: DecisionKind
    code: Reason
    reason: str


@dataclass(frozen=True)
class ConditionState:
    """One workload condition of the plan at one look, in words."""

    words: str
    is_met: bool


@dataclass(frozen=True)
class LookEvaluation:
    """All guardrails at one look and the decision that follows.

    `elapsed` is f, the elapsed share of the planned window (above 1 in
    the extension). `scores` maps a name to whole numbers, `told` holds what the look was told
    besides them in plain JSON; with policy, design and the state before both are enough to judge
    the look again (`rejudge`).
    """

    look: int
    as_of_seconds: float
    elapsed: float
    guardrails: tuple[GuardrailEvaluation, ...]
    recommendation: Recommendation
    flags: tuple[str, ...] = ()
    scores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    told: Mapping[str, object] = field(default_factory=dict)
    conditions: tuple[ConditionState, ...] = ()
