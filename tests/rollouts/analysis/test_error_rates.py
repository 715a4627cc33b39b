"""Seeded simulations of whole waves: how often the judge errs, and that it sees what it should.

Small and fast; the benchmarks run the full tables. Each bound is the nominal rate plus two
standard errors of the simulation, so that about one seed in forty would miss it by chance.
"""

import math
from dataclasses import replace

import pytest

from rollouts.analysis import judge
from rollouts.analysis.policy import Guardrail
from rollouts.analysis.verdicts import DecisionKind, GuardrailEvaluation, LookEvaluation
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import FAULTS, RECOVERY, THROUGHPUT, Drawn

pytestmark = pytest.mark.statistical

WAVES = 150
LOOKS = 8


def waves(
    drawn: Drawn, *guardrails: Guardrail, number: int = WAVES, seed: int = 0
) -> list[list[LookEvaluation]]:
    found = []
    for wave in range(number):
        samples = drawn.draw(1000 * seed + wave)
        policy = worlds.policy(*guardrails, resamples=499, seed=wave)
        evaluations, _ = judge.evaluate(
            samples,
            policy,
            worlds.recorded(samples),
            looks=worlds.looks(samples, LOOKS),
            state=judge.initial_state(samples, policy),
        )
        found.append(evaluations)
    return found


def ends(found: list[list[LookEvaluation]], place: int = 0) -> list[GuardrailEvaluation]:
    return [evaluations[-1].guardrails[place] for evaluations in found]


def at_most(nominal: float, number: int = WAVES) -> float:
    return nominal + 2 * math.sqrt(nominal * (1 - nominal) / number)


def test_lemons_and_bursts_halt_a_harmless_bundle_no_more_often_than_nominal():
    drawn = Drawn(jobs=4, rate_per_day=0.2, burst=2.0, shocks_per_day=0.2, has_reports=False)

    halted = [end.crossed for end in ends(waves(drawn, FAULTS, seed=1))]

    assert 0 < sum(halted) / WAVES <= at_most(0.05)


def test_canaries_that_fail_three_times_as_often_are_halted():
    # The prototype's S8 (8 canaries, .2 per day) halts 49 % of them; 16 canaries do better.
    drawn = Drawn(jobs=4, rate_per_day=0.2, rate_ratio=3.0, has_reports=False)

    halted = [end.crossed for end in ends(waves(drawn, FAULTS, number=100, seed=2))]

    assert sum(halted) / 100 >= 0.5


def test_canaries_at_the_fault_margin_are_seldom_called_not_worse():
    # Asymptotic: .065 is what part 4 accepts for larger waves.
    drawn = Drawn(jobs=8, rate_per_day=0.2, rate_ratio=2.0, has_reports=False)
    no_halt = replace(FAULTS, halt=False)

    shown = [end.shown for end in ends(waves(drawn, no_halt, seed=3))]

    assert sum(shown) / WAVES <= at_most(0.065)


def test_throughput_at_the_margin_is_called_not_worse_no_more_often_than_nominal():
    drawn = Drawn(jobs=2, rate_per_day=0.0, days=1, drop=0.02)
    no_halt = replace(THROUGHPUT, halt=False)

    shown = [end.shown for end in ends(waves(drawn, no_halt, seed=4))]

    assert 0 < sum(shown) / WAVES <= at_most(0.05)


def test_a_tolerated_drop_halts_no_more_often_than_nominal():
    drawn = Drawn(jobs=2, rate_per_day=0.0, days=1, drop=0.01)

    halted = [end.crossed for end in ends(waves(drawn, THROUGHPUT, seed=5))]

    assert 0 < sum(halted) / WAVES <= at_most(0.05)


def test_recovery_at_the_margin_is_called_not_worse_no_more_often_than_nominal():
    drawn = Drawn(
        jobs=4, rate_per_day=0.2, recovery_factor=1.5, has_reports=False, has_recoveries=True
    )
    no_halt = replace(RECOVERY, halt=False)

    shown = [end.shown for end in ends(waves(drawn, no_halt, seed=6))]

    assert sum(shown) / WAVES <= at_most(0.05)


def test_a_sound_bundle_is_widened():
    # 32 canaries at .4 per day for 3 days: most waves decide both.
    drawn = Drawn(jobs=8, rate_per_day=0.4)

    found = waves(drawn, FAULTS, THROUGHPUT, number=40, seed=7)

    widened = [any(e.recommendation.kind is DecisionKind.WIDEN for e in wave) for wave in found]
    assert sum(widened) / 40 >= 0.5
