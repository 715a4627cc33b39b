"""Replay a recorded case through the judge and say what a rollout would have decided, and when.

The same evaluation as a live rollout, over all looks at once; only the assignment was somebody
else's, so what it says is advice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from rollouts.analysis import judge
from rollouts.analysis.policy import Metric
from rollouts.analysis.verdicts import (
    ArmCounts,
    DecisionKind,
    GuardrailEvaluation,
    LookEvaluation,
    Verdict,
)
from rollouts.analysis.wave import Look, WavePlan
from rollouts.cases import Case, LeftOut
from rollouts.cases.slips import shortened

DECISIVE = (DecisionKind.WIDEN, DecisionKind.HALT)
NOT_DRAWN = "assignment was not drawn by the engine"
RATIOS = (Metric.FAULTS, Metric.THROUGHPUT, Metric.RECOVERY_TIME)
WORKLOADS_IN_REASON = 6
INPUT: Mapping[Metric, str] = {
    Metric.FAULTS: "faults",
    Metric.NOVEL_SIGNATURES: "known_signatures",
    Metric.RECOVERY_TIME: "recoveries",
    Metric.SEVERE_PATH: "recoveries",
    Metric.LOST_WORK: "recoveries",
    Metric.INSTALL: "attempts",
    Metric.THROUGHPUT: "observations",
    Metric.TELEMETRY: "observations",
}
"""What of the samples a metric is computed from; without it there are no numbers."""


@dataclass(frozen=True)
class Backtest:
    """A replayed case: every look in order, and the one that decided."""

    case: Case
    looks: tuple[LookEvaluation, ...]

    @property
    def decisive(self) -> LookEvaluation:
        """The first look that widens or halts, else the last."""
        found = (look for look in self.looks if look.recommendation.kind in DECISIVE)
        return next(found, self.looks[-1])

    @property
    def decision(self) -> DecisionKind:
        kind = self.decisive.recommendation.kind
        return kind if kind in DECISIVE else DecisionKind.HOLD

    def figures(self, *, is_at_decision: bool) -> LookEvaluation:
        """The look whose numbers are shown; what has no input has no numbers."""
        look = self.decisive if is_at_decision else self.looks[-1]
        items = tuple(
            item if has_input(item.metric, case=self.case) else _without_numbers(item)
            for item in look.guardrails
        )
        return replace(look, guardrails=items)

    @property
    def advisory_because(self) -> list[str]:
        return [NOT_DRAWN, *self.case.caveats]

    def time_of(self, look: LookEvaluation) -> str:
        """The look's cutoff in RFC 3339."""
        return self.time_at(look.as_of_seconds)

    def time_at(self, seconds: float) -> str:
        """Seconds since the window's start in RFC 3339."""
        moment = self.case.samples.origin + timedelta(seconds=seconds)
        return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def replay(case: Case) -> Backtest:
    """Judge every look of a recorded case as one wave with the whole error budget."""
    policy = case.policy
    plan = WavePlan(
        window_seconds=case.samples.window_seconds - policy.burn_in_hours * 3600,
        alpha=policy.alpha,
        is_recorded=True,
        has_extension=False,
    )
    looks = [
        Look(number=number, as_of_seconds=float(seconds), elapsed=number / policy.looks)
        for number, seconds in enumerate(case.looks_seconds, start=1)
    ]
    evaluations, _ = judge.evaluate(
        case.samples,
        policy,
        plan,
        looks=looks,
        state=judge.initial_state(case.samples, policy),
    )
    return Backtest(case=case, looks=tuple(evaluations))


# --- the document --------------------------------------------------------------------------


def as_document(backtest: Backtest, *, is_at_decision: bool = False) -> dict[str, Any]:
    """The JSON object of a backtest; every number is finite or null.

    Verdicts are those of the deciding look; estimates, intervals and counts are those of the
    whole window, or of the deciding look where `is_at_decision`.
    """
    decisive = backtest.decisive
    shown = backtest.figures(is_at_decision=is_at_decision)
    return {
        "case": backtest.case.name,
        "decision": backtest.decision.value,
        "reason_code": decisive.recommendation.code.value,
        "reason": decisive.recommendation.reason,
        "advisory": True,
        "advisory_because": backtest.advisory_because,
        "look": decisive.look,
        "looks": len(backtest.looks),
        "decided_at": backtest.time_of(decisive),
        "left_out": {
            "machines": backtest.case.left_out_machines,
            "rows": [_left_out(item) for item in backtest.case.left_out_rows],
        },
        "guardrails": [
            _guardrail(decided, figures, case=backtest.case)
            for decided, figures in zip(decisive.guardrails, shown.guardrails, strict=True)
        ],
        "history": [_look(backtest, look) for look in backtest.looks],
    }


def _left_out(item: LeftOut) -> dict[str, Any]:
    return {
        "file": item.file,
        "kind": item.kind.value,
        "count": item.count,
        "first": {
            "line": item.first.line,
            "column": item.first.column,
            "value": shortened(item.first.value, limit=200),
            "accepted": item.first.accepted,
        },
    }


def _guardrail(
    decided: GuardrailEvaluation, figures: GuardrailEvaluation, *, case: Case
) -> dict[str, Any]:
    canaries, controls = case.machines
    return {
        "name": decided.name,
        "metric": decided.metric.value,
        "verdict": decided.verdict.value,
        "unit": "ratio" if decided.metric in RATIOS else "difference",
        "estimate": _number(figures.estimate),
        "low": _number(figures.repeated.low),
        "high": _number(figures.repeated.high),
        "fixed_look": {
            "low": _number(figures.fixed_look.low),
            "high": _number(figures.fixed_look.high),
            "level": figures.fixed_look.level,
        },
        "canary": _arm(figures.canary, machines=canaries),
        "control": _arm(figures.control, machines=controls),
        "reason": reason_of(decided, figures),
    }


def has_input(metric: Metric, *, case: Case) -> bool:
    """Whether the recording holds what the metric is computed from."""
    return getattr(case.samples, INPUT[metric]) is not None


def _without_numbers(figures: GuardrailEvaluation) -> GuardrailEvaluation:
    """No file is not the same as no event."""
    return replace(
        figures,
        estimate=None,
        repeated=replace(figures.repeated, low=None, high=None),
        fixed_look=replace(figures.fixed_look, low=None, high=None),
        canary=replace(figures.canary, events=None),
        control=replace(figures.control, events=None),
    )


def reason_of(decided: GuardrailEvaluation, figures: GuardrailEvaluation) -> str:
    """Why the verdict, and, where the figures are of another look, what they lack or hold."""
    parts = [decided.reason]
    numbers = (figures.estimate, figures.repeated.low, figures.repeated.high)
    if any(_number(value) is None for value in numbers) and figures.reason not in parts:
        parts.append(f"whole window: {figures.reason}")
    worst = workload_rows(figures)[:WORKLOADS_IN_REASON]
    if worst:
        listing = ", ".join(f"{row.name} {row.estimate:.3f}" for row in worst)
        parts.append(f"furthest from 1 by workload: {listing}")
    return "; ".join(parts)


class WorkloadRow(NamedTuple):
    """One workload's ratio of canary to control with its fixed-look interval."""

    name: str
    estimate: float
    low: float | None
    high: float | None


def workload_rows(figures: GuardrailEvaluation) -> list[WorkloadRow]:
    """Per-workload ratios of a throughput guardrail, the furthest from 1 first."""
    table = figures.details.get("workloads")
    if not isinstance(table, Mapping):
        return []
    rows = [
        WorkloadRow(str(name), float(row["estimate"]), row["low"], row["high"])
        for name, row in table.items()
        if row["estimate"] is not None
    ]
    return sorted(rows, key=lambda row: (-abs(row.estimate - 1), row.name))


def _arm(counts: ArmCounts, *, machines: int) -> dict[str, Any]:
    return {
        "machines": machines,  # of the arm: nobody leaves the denominator
        "events": counts.events,
        "exposure_hours": _number(counts.exposure_hours),
    }


def _look(backtest: Backtest, look: LookEvaluation) -> dict[str, Any]:
    return {
        "look": look.look,
        "as_of": backtest.time_of(look),
        "decision": look.recommendation.kind.value,
        "guardrails": {item.name: Verdict(item.verdict).value for item in look.guardrails},
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
