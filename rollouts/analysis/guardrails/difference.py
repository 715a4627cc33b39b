"""A guardrail on a difference between the arms: what severe path and unit figures share."""

import math
from collections.abc import Sequence

import numpy as np

from rollouts.analysis.differences import Difference
from rollouts.analysis.evidence import (
    Moment,
    figure,
    finite,
    harm_bound,
    is_below,
    millionths,
    spent_details,
    stepped_halt,
    stepped_widen,
    verdict_for,
)
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.policy import Guardrail
from rollouts.analysis.pooling import harm_z, pooled_difference
from rollouts.analysis.samples import BoolArray, FloatArray, IntArray
from rollouts.analysis.verdicts import ArmCounts, GuardrailEvaluation, Interval, Verdict
from rollouts.analysis.wave import GuardrailState


def judged_difference(
    guardrail: Guardrail,
    run: Run,
    *,
    moment: Moment,
    harm: IntArray,
    found: Difference | None,
    counts: tuple[ArmCounts, ArmCounts],
    words: str,
    has_margin: bool = True,
    as_points: bool = True,
) -> tuple[GuardrailEvaluation, GuardrailState]:
    """Halt by re-assignment, widen by the clustered z, limits on the difference."""
    state = stepped_halt(moment, harm)
    here = None if found is None or not has_margin else found.under_margin(guardrail.margin)
    every = with_earlier(here, run.plan.earlier.get(guardrail.name, ()))
    z = difference_z(every, guardrail.margin)
    if has_margin and moment.may_show and not state.is_crossed:
        state = stepped_widen(moment, state, is_shown=is_below(z, moment.widen_bound))
    low, high = _difference_limits(
        guardrail, moment, harm, found, every=every, state=state, has_margin=has_margin
    )
    verdict = verdict_for(moment, state)
    estimate = None if found is None else found.estimate
    evaluation = GuardrailEvaluation(
        name=guardrail.name,
        metric=guardrail.metric,
        verdict=verdict,
        unit="difference",
        estimate=finite(estimate),
        repeated=Interval(low, high, 1 - run.policy.beta),
        fixed_look=found.interval() if found is not None else Interval(None, None, 0.95),
        canary=counts[0],
        control=counts[1],
        reason=_difference_reason(
            guardrail,
            verdict,
            estimate,
            (low, high),
            moment=moment,
            words=words,
            has_margin=has_margin,
            as_points=as_points,
        ),
        required=moment.is_required,
        is_decidable=moment.is_decidable,
        crossed=state.is_crossed,
        shown=state.is_shown,
        details={
            **spent_details(moment, state),
            "margin": guardrail.margin if has_margin else None,
            "tolerance": guardrail.tolerance,
            "statistic": int(harm[0]),
            "harm_z": harm_z(harm),
            "widen_z": millionths(z),
            "difference": None if here is None else {"estimate": here[0], "error": here[1]},
            **_cumulative(every, here, waves=len(run.plan.earlier.get(guardrail.name, ()))),
        },
    )
    return evaluation, state


def with_earlier(
    here: tuple[float, float] | None, earlier: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """This wave's difference with those of the waves before; None where it has none yet."""
    return here if here is None or not earlier else pooled_difference([*earlier, here])


def difference_z(difference: tuple[float, float] | None, margin: float) -> float | None:
    """z of "canaries are worse by the margin"."""
    return None if difference is None else (difference[0] - margin) / difference[1]


def kept_outcomes(
    total: FloatArray | IntArray, occasions: IntArray | BoolArray, *, name: str, look: int
) -> dict[str, IntArray]:
    """Outcomes and occasions per unit, which are counts, as a checkpoint keeps them."""
    return {
        f"{name}/outcomes/{look}": np.rint(total).astype(np.int64),
        f"{name}/occasions/{look}": occasions.astype(np.int64),
    }


def _cumulative(
    every: tuple[float, float] | None, here: tuple[float, float] | None, *, waves: int
) -> dict[str, object]:
    if every is None or every == here:
        return {}
    return {"cumulative": {"estimate": every[0], "error": every[1], "waves": waves + 1}}


def _difference_limits(
    guardrail: Guardrail,
    moment: Moment,
    harm: IntArray,
    found: Difference | None,
    *,
    every: tuple[float, float] | None,
    state: GuardrailState,
    has_margin: bool,
) -> tuple[float | None, float | None]:
    """Normal limits at the look's spending, moved where they would contradict the verdict."""
    if found is None or moment.missing is not None or moment.undersized is not None:
        return None, None
    bound = harm_bound(moment, harm)
    low = found.estimate - bound * found.error if math.isfinite(bound) else -math.inf
    low = max(low, guardrail.tolerance) if state.is_crossed else min(low, guardrail.tolerance)
    if not has_margin:
        return finite(low), None
    estimate, error = every or (found.estimate, found.margin_error(guardrail.margin))
    high = estimate + moment.widen_bound * error
    if state.is_shown:
        high = min(high, guardrail.margin)
    elif not state.is_crossed:
        high = max(high, guardrail.margin)
    return finite(min(low, high)), finite(high)


def _difference_reason(
    guardrail: Guardrail,
    verdict: Verdict,
    estimate: float | None,
    limits: tuple[float | None, float | None],
    *,
    moment: Moment,
    words: str,
    has_margin: bool,
    as_points: bool,
) -> str:
    if verdict is Verdict.NO_DATA:
        return moment.missing or "no data"
    if estimate is None:
        return f"not estimable: no occasion in an arm ({words})"
    show = _points if as_points else _plain
    low, high = limits
    side = "above" if estimate >= 0 else "below"
    what = f"{show(abs(estimate))} {side} the control's {words}"
    if verdict is Verdict.HARMFUL:
        return what if low is None else f"{what} (at least {show(low)})"
    if not has_margin:
        return f"{what}; halts only, proves nothing"
    margin = f"the margin is {show(guardrail.margin)}"
    if verdict is Verdict.NOT_WORSE:
        return f"{what} ({'' if high is None else f'at most {show(high)}; '}{margin})"
    if moment.undersized is not None:
        return moment.undersized
    return f"{what}; {'no upper limit yet' if high is None else f'could be {show(high)}'}, {margin}"


def _points(share: float) -> str:
    return f"{figure(100 * share)} points"


def _plain(value: float) -> str:
    return figure(value)
