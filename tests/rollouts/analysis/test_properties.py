"""What must not change a verdict, and what may change it in one direction only."""

import csv
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from rollouts import backtest
from rollouts.analysis import judge
from rollouts.analysis.samples import Samples
from rollouts.analysis.verdicts import LookEvaluation
from rollouts.cases import read_case
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import (
    FAULTS,
    HOUR,
    LOST_WORK,
    NOVEL,
    RECOVERY,
    SEVERE,
    TELEMETRY,
    THROUGHPUT,
)

EVERY = worlds.policy(
    FAULTS, THROUGHPUT, RECOVERY, SEVERE, LOST_WORK, NOVEL, TELEMETRY, resamples=99
)
FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SEEDS = st.integers(0, 2**16)


def judged(samples: Samples, policy=EVERY, *, number: int = 2) -> list[LookEvaluation]:
    evaluations, _ = judge.evaluate(
        samples,
        policy,
        worlds.recorded(samples, alpha=policy.alpha),
        looks=worlds.looks(samples, number),
        state=judge.initial_state(samples, policy),
    )
    return evaluations


def drawn(seed: int) -> Samples:
    """Forty machines for a day, with everything in it; some worlds are harmed."""
    world = worlds.Drawn(
        2,
        rate_per_day=2.0,
        days=1,
        rate_ratio=1.0 + seed % 3,
        drop=0.01 * (seed % 4),
        has_recoveries=True,
    )
    return replace(world.draw(seed), known_signatures=frozenset({"xid-79"}))


ROWS = {
    "faults": ("machine", "time_seconds", "signature"),
    "observations": (
        "machine",
        "start_seconds",
        "end_seconds",
        "in_service_seconds",
        "throughput",
        "workload",
    ),
    "recoveries": (
        "machine",
        "time_seconds",
        "recovered_seconds",
        "recovery_seconds",
        "repeated_seconds",
        "path",
    ),
}


def verdicts(evaluations: list[LookEvaluation]) -> list[object]:
    return [
        (e.recommendation.kind, e.recommendation.code, [g.verdict for g in e.guardrails])
        for e in evaluations
    ]


@FEW
@given(seed=SEEDS, order=SEEDS)
def test_the_order_of_rows_never_changes_a_verdict(seed, order):
    samples, rng = drawn(seed), np.random.default_rng(order)
    shuffled = {}
    for table, columns in ROWS.items():
        rows = getattr(samples, table)
        place = rng.permutation(rows.machine.size)
        shuffled[table] = replace(rows, **{name: getattr(rows, name)[place] for name in columns})

    assert verdicts(judged(samples)) == verdicts(judged(replace(samples, **shuffled)))


@FEW
@given(seed=SEEDS, shift=st.integers(1, 10**6), width=st.integers(7, 12))
def test_other_names_in_the_same_order_never_change_anything(seed, shift, width):
    samples = drawn(seed)
    names = tuple(f"rack{place + shift:0{width}}" for place in range(len(samples.machines.name)))
    renamed = replace(
        samples,
        units=replace(samples.units, name=names),
        machines=replace(samples.machines, name=names),
    )

    assert judged(samples) == judged(renamed)


@FEW
@given(seed=SEEDS, minutes=st.integers(-14 * 60, 14 * 60))
def test_the_zone_of_the_origin_never_changes_anything(seed, minutes):
    samples = drawn(seed)
    zone = timezone(timedelta(minutes=minutes))

    assert judged(samples) == judged(replace(samples, origin=samples.origin.astimezone(zone)))


@FEW
@given(seed=SEEDS, power=st.integers(-20, 20))
def test_the_unit_of_throughput_never_changes_a_verdict(seed, power):
    samples = drawn(seed)
    rows = samples.observations
    scaled = replace(rows, throughput=rows.throughput * 2.0**power)

    assert verdicts(judged(samples)) == verdicts(judged(replace(samples, observations=scaled)))


@FEW
@given(seed=SEEDS, factor=st.floats(0.01, 1000.0))
def test_any_unit_of_throughput_gives_the_same_estimate(seed, factor):
    # A factor that is no power of two rounds; estimates agree to its last digits.
    samples = drawn(seed)
    rows = samples.observations
    scaled = replace(samples, observations=replace(rows, throughput=rows.throughput * factor))

    one, other = judged(samples)[-1].guardrails[1], judged(scaled)[-1].guardrails[1]

    assert one.estimate == pytest.approx(other.estimate, rel=1e-9)
    assert one.fixed_look.low == pytest.approx(other.fixed_look.low, rel=1e-9)


@FEW
@given(seed=SEEDS, step=st.integers(1, 50))
def test_codes_of_strata_in_the_same_order_are_only_names(seed, step):
    samples = drawn(seed)
    renamed = replace(samples.units, stratum=samples.units.stratum * step + 3)

    assert judged(samples) == judged(replace(samples, units=renamed))


# --- a recording in another zone -------------------------------------------------------------


def write_case(folder: Path, zone: timezone) -> Path:
    """A small case whose times are written in a zone of one's choice."""

    def at(hour: float) -> str:
        moment = datetime(2026, 3, 28, 20, tzinfo=UTC) + timedelta(hours=hour)
        return moment.astimezone(zone).isoformat()

    folder.mkdir()
    tables = {
        "machines": [
            ["machine", "arm", "enrolled_at", "left_at"],
            *([f"m{n:02}", "canary" if n < 12 else "control", at(0), at(48)] for n in range(36)),
        ],
        "faults": [
            ["machine", "time", "signature", "severity"],
            *([f"m{n % 36:02}", at(1 + 0.6 * n), "DBE", "critical"] for n in range(70)),
        ],
    }
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as handle:
            csv.writer(handle).writerows(rows)
    return folder


SMALL = {"resamples": 199, "looks": 4, "min_exposure_hours": 0}


@pytest.mark.parametrize("minutes", [330, -480])
def test_a_recording_says_the_same_in_every_zone(tmp_path, minutes):
    utc, other = (
        backtest.as_document(backtest.replay(read_case(write_case(tmp_path / name, zone), SMALL)))
        for name, zone in (("utc", UTC), ("other", timezone(timedelta(minutes=minutes))))
    )

    del utc["case"], other["case"]
    assert utc == other


# --- one more fault --------------------------------------------------------------------------

COUNTS = st.lists(st.integers(0, 3), min_size=12, max_size=12)


def one_look(counts: list[int], *, strata: list[int], alpha: float) -> LookEvaluation:
    """Twelve machines over four days, at most one fault per machine and day: plain counts."""
    rows = [(m, 24.0 * day + 5) for m, n in enumerate(counts) for day in range(n)]
    samples = worlds.world(4, 8, hours=96, strata=strata, faults=worlds.faults(rows))
    policy = worlds.policy(FAULTS, alpha=alpha)  # few enough assignments: all are enumerated
    return judged(samples, policy, number=1)[0]


@settings(max_examples=60, deadline=None)
@given(
    counts=COUNTS,
    canary=st.integers(0, 3),
    strata=st.sampled_from([[0] * 12, [0, 0, 1, 1] * 3]),
    alpha=st.sampled_from([0.02, 0.1, 0.3]),
)
def test_one_more_canary_fault_never_makes_a_halt_less_likely(counts, canary, strata, alpha):
    more = [n + (m == canary) for m, n in enumerate(counts)]

    before = one_look(counts, strata=strata, alpha=alpha).guardrails[0]
    after = one_look(more, strata=strata, alpha=alpha).guardrails[0]

    assert after.crossed or not before.crossed


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, control=st.integers(4, 11), alpha=st.sampled_from([0.02, 0.1, 0.3]))
def test_one_more_control_fault_never_makes_a_halt_more_likely(counts, control, alpha):
    more = [n + (m == control) for m, n in enumerate(counts)]

    before = one_look(counts, strata=[0] * 12, alpha=alpha).guardrails[0]
    after = one_look(more, strata=[0] * 12, alpha=alpha).guardrails[0]

    assert before.crossed or not after.crossed


def badness(counts: list[int]) -> np.ndarray:
    """What a machine's days with a fault count, in whole millionths."""
    return np.rint(1e6 * np.log1p(counts))


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS)
def test_a_halt_at_one_look_is_full_enumeration(counts):
    # Of all C(12, 4) choices of canaries, how many do at least as badly as the true one?
    bad = badness(counts)
    larger = sum(bad[list(chosen)].sum() >= bad[:4].sum() for chosen in combinations(range(12), 4))

    found = one_look(counts, strata=[0] * 12, alpha=0.1).guardrails[0]

    assert found.crossed == (Fraction(larger, comb(12, 4)) <= Fraction(1, 10))


@settings(max_examples=20, deadline=None)
@given(counts=COUNTS, alpha=st.sampled_from([0.02, 0.05, 0.1, 0.3]))
def test_a_halt_at_one_look_agrees_with_scipy(counts, alpha):
    values = badness(counts)
    p_value = permutation_test(
        (values[:4], values[4:]),
        lambda x, y, axis: np.sum(x, axis=axis),
        permutation_type="independent",
        alternative="greater",
        n_resamples=10_000,
        vectorized=True,
    ).pvalue

    found = one_look(counts, strata=[0] * 12, alpha=alpha).guardrails[0]

    assert found.crossed == (p_value <= alpha + 1e-12)


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, alpha=st.sampled_from([0.02, 0.1, 0.3]))
def test_a_throughput_halt_at_one_look_agrees_with_scipy(seed, alpha):
    levels = 100 * (1 + 0.02 * np.random.default_rng(seed).standard_normal(12))
    samples = worlds.world(4, 8, hours=2, observations=worlds.reports(levels.tolist(), hours=2))
    rescaled = levels * np.where(np.arange(12) < 4, 1 / 0.99, 1.0)  # the tolerated drop
    p_value = permutation_test(
        (-rescaled[:4], -rescaled[4:]),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        permutation_type="independent",
        alternative="greater",
        n_resamples=10_000,
        vectorized=True,
    ).pvalue

    found = judged(samples, worlds.policy(THROUGHPUT, alpha=alpha), number=1)[0].guardrails[0]

    assert found.crossed == (p_value <= alpha + 1e-12)
    assert samples.window_seconds == 2 * HOUR
