"""The install guardrail: anytime-valid evidence for halting, an exact bound for widening."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rollouts.analysis.evidence import (
    Moment,
    millionths,
    spent_details,
    stepped_widen,
    verdict_for,
)
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.policy import Guardrail
from rollouts.analysis.proportions import (
    Bound,
    InstallJudgement,
    clopper_pearson,
    hard_stop,
    judge_installs,
)
from rollouts.analysis.samples import IntArray
from rollouts.analysis.verdicts import ArmCounts, GuardrailEvaluation, Interval, Verdict
from rollouts.analysis.wave import GuardrailState

SUCCEEDED = "succeeded"
BRICKED = "bricked"
WORKED, FAILED, LOST = 0, 1, 2
"""How the installs that a look keeps ended; a brick is a failure too."""


def install_codes(run: Run, index: int) -> IntArray:
    """How each install ended that had by the look, in order of time."""
    rows = run.samples.attempts
    if rows is None:
        return np.empty(0, dtype=np.int64)
    code = {SUCCEEDED: WORKED, BRICKED: LOST}
    codes = np.array([code.get(name, FAILED) for name in rows.outcomes], dtype=np.int64)
    known = rows.outcome[rows.time_seconds <= run.as_of[index]]
    return codes[known] if known.size else np.empty(0, dtype=np.int64)


def install_stop(codes: IntArray, *, most_bricks: int) -> str | None:
    """Why the installs alone stop the wave, outside the error budget; else None."""
    stop = hard_stop(
        (codes != WORKED).tolist(), bricks=int((codes == LOST).sum()), max_bricks=most_bricks
    )
    return None if stop is None else f"installs: {stop.value.replace('_', ' ')}"


def stepped_installs(moment: Moment) -> GuardrailState:
    """The state after installs have proved harmful; the first look that says so stays."""
    state = moment.state
    return state if state.is_crossed else replace(state, halt_look=moment.look.number)


@dataclass(frozen=True, eq=False)
class InstallTrack:
    """Failures among finished installs; every failure class and time-out is a failure.

    The estimate is the failure share minus the tolerated one: installs have no control.
    """

    guardrail: Guardrail
    run: Run

    @classmethod
    def prepare(cls, guardrail: Guardrail, run: Run) -> "InstallTrack":
        return cls(guardrail, run)

    def columns(self) -> Mapping[str, IntArray]:
        return {}

    def _finished(self, index: int) -> tuple[int, int]:
        """Failures and attempts of this wave by the look."""
        codes = install_codes(self.run, index)
        return int((codes != WORKED).sum()), codes.size

    def kept(self, index: int, *, at_checkpoint: bool) -> Mapping[str, IntArray]:
        return {}  # every look keeps its installs, whether a guardrail counts them or not

    def _cumulative(self, index: int) -> tuple[int, int]:
        return self.run.plan.cumulative_attempts or self._finished(index)

    @property
    def _baseline(self) -> float:
        return self.run.samples.install_baseline or 0.0

    @property
    def absent(self) -> str | None:
        has_table = self.run.samples.attempts is not None
        return None if has_table else "no data: install attempts are not collected"

    def missing(self, index: int) -> str | None:
        if self.absent is not None:
            return self.absent
        has_any = self._finished(index)[1] or self._cumulative(index)[1]
        return None if has_any else "no data: no install has finished"

    def is_decidable(self, index: int, *, elapsed: float, bound: float) -> bool:
        """Could installs without a failure, as many as there are, show the limit?"""
        _, attempts = self._cumulative(index)
        return self._judged(0, attempts).is_not_worse

    def _judged(self, failures: int, attempts: int, *, alpha: float = 0.0) -> InstallJudgement:
        return judge_installs(
            failures,
            attempts,
            baseline=self._baseline,
            alpha=alpha,
            beta=self.run.policy.beta,
            tolerance=self.guardrail.tolerance,
            margin=self.guardrail.margin,
        )

    def judge(
        self, moment: Moment, sums: Mapping[str, IntArray]
    ) -> tuple[GuardrailEvaluation, GuardrailState]:
        failures, attempts = self._finished(moment.index)
        alpha = 0.0 if not moment.may_halt else float(moment.whole_alpha)
        now = self._judged(failures, attempts, alpha=alpha)
        every = self._judged(*self._cumulative(moment.index))
        state = moment.state
        if now.is_harmful:
            state = stepped_installs(moment)
        if moment.may_show and not state.is_crossed:
            state = stepped_widen(moment, state, is_shown=every.is_not_worse)
        verdict = verdict_for(moment, state)
        evaluation = GuardrailEvaluation(
            name=self.guardrail.name,
            metric=self.guardrail.metric,
            verdict=verdict,
            unit="difference",
            estimate=failures / attempts - now.tolerated if attempts else None,
            repeated=self._repeated(now, every, state=state),
            fixed_look=self._fixed(now),
            canary=self._counts(moment.index, failures=failures),
            control=ArmCounts(machines=0, events=None, exposure_hours=0.0),
            reason=self._reason(verdict, now, every, moment=moment),
            required=moment.is_required,
            is_decidable=moment.is_decidable,
            crossed=state.is_crossed,
            shown=state.is_shown,
            details={
                **spent_details(moment, state),
                "failures": failures,
                "attempts": attempts,
                "cumulative_failures": every.failures,
                "cumulative_attempts": every.attempts,
                "tolerated": now.tolerated,
                "limit": now.limit,
                "log_e": now.log_e,
                "log_e_millionths": millionths(now.log_e),
                "upper": every.upper,
            },
        )
        return evaluation, state

    def _counts(self, index: int, *, failures: int) -> ArmCounts:
        rows = self.run.samples.attempts
        machines = 0
        if rows is not None:
            machines = len(set(rows.machine[rows.time_seconds <= self.run.as_of[index]].tolist()))
        canary, _ = self.run.counts(index, events=None)
        return ArmCounts(machines, failures, canary.exposure_hours)

    def _repeated(
        self, now: InstallJudgement, every: InstallJudgement, *, state: GuardrailState
    ) -> Interval:
        level = 1 - self.run.policy.beta
        if not now.attempts:
            return Interval(None, None, level)
        margin = now.limit - now.tolerated
        high = every.upper - now.tolerated
        if state.is_shown:
            high = min(high, margin)
        elif not state.is_crossed:
            high = max(high, margin)
        else:  # earlier waves may have gone well, and this one is harmful all the same
            high = max(high, 0.0)
        return Interval(0.0 if state.is_crossed else None, high, level)

    def _fixed(self, now: InstallJudgement) -> Interval:
        if not now.attempts:
            return Interval(None, None, 0.95)
        low, high = (
            clopper_pearson(now.failures, now.attempts, level=0.975, side=side)
            for side in (Bound.LOWER, Bound.UPPER)
        )
        return Interval(low - now.tolerated, high - now.tolerated, 0.95)

    def _reason(
        self, verdict: Verdict, now: InstallJudgement, every: InstallJudgement, *, moment: Moment
    ) -> str:
        if verdict is Verdict.NO_DATA:
            return moment.missing or "no data"
        tally = f"{now.failures} of {now.attempts} installs failed"
        if verdict is Verdict.HARMFUL:
            return f"too risky ({tally}; {now.tolerated:.1%} is tolerated)"
        most = f"at most {every.upper:.1%} by {every.attempts} installs"
        if verdict is Verdict.NOT_WORSE:
            return f"{tally} ({most}; the limit is {now.limit:.1%})"
        return f"{tally}; {most}, the limit is {now.limit:.1%}"
