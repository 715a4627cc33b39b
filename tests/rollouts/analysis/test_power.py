"""Planning figures: closed forms, the rules of thumb, and agreement with simulation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, hypergeom, nbinom, norm

from rollouts.analysis import power
from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.power import (
    RECOVERY_MARGIN,
    RECOVERY_SIGMA,
    FaultCounts,
    FaultRate,
    effective_margin,
    expected_excess_faults,
    fault_halt_power,
    fault_ni_power,
    install_ni_power,
    is_decidable,
    needed_exposure,
    recovery_ni_power,
    schoenfeld_events,
    severe_ni_power,
    share_halt_power,
    throughput_ni_power,
    zero_event_exposure,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())["planner"]
LAST_BOUND = 1.827


def lemon_counts(rate, *, days, machines=20_000, seed=5):
    """The fleet of the benchmark: gamma(2) machines, 1.5 % of them 10 to 50 times worse."""
    rng = np.random.default_rng(seed)
    lemons = np.where(rng.random(machines) < 0.015, rng.uniform(10, 50, machines), 1)
    level = rng.gamma(2, 0.5, machines) * lemons / (1 + 0.015 * 29)
    return FaultCounts(rng.poisson(level * rate * days), days=days)


class Untold:
    """A history of which nobody knows which machine it happened to."""

    def __init__(self, counts):
        self.rate_per_day, self.generating = counts.rate_per_day, counts.generating


@pytest.mark.parametrize("vector", VECTORS["schoenfeld_total_first_episodes"])
def test_total_first_episodes_match_the_formula_of_schoenfeld(vector):
    events = schoenfeld_events(
        float(vector["M"]),
        canary_fraction=float(vector["canary_fraction"]),
        alpha=float(vector["alpha"]),
        beta=float(vector["beta"]),
    )

    assert events == pytest.approx(vector["events"], rel=1e-10)


@pytest.mark.parametrize("vector", VECTORS["zero_event_exposure_machine_days"])
def test_exposure_without_event_matches_the_closed_form(vector):
    days = zero_event_exposure(float(vector["margin_rate_per_day"]), alpha=vector["alpha"])

    assert days == pytest.approx(vector["exposure"], rel=1e-10)


def test_gamma_poisson_generates_as_the_negative_binomial_does():
    # scipy's nbinom with n = 1/k and p = 1/(1 + k mean), summed term by term.
    k, mean = 0.7, 0.05 * 12.0
    counts = np.arange(400)
    mass = nbinom.pmf(counts, 1 / k, 1 / (1 + k * mean))

    for share in (0.0, 0.25, 0.5, 1.0):
        expected = float((mass * share**counts).sum())
        assert FaultRate(0.05, dispersion=k).generating(share, days=12.0) == pytest.approx(
            expected, rel=1e-10
        )


def test_thinned_counts_generate_as_the_longer_history_says():
    whole = lemon_counts(0.05, days=14.0, machines=200_000)
    short = lemon_counts(0.05, days=3.5, machines=200_000, seed=6)

    for share in (0.0, 0.5):
        for days in (1.0, 3.5, 7.0):
            assert short.generating(share, days=days) == pytest.approx(
                whole.generating(share, days=days), abs=0.005
            )


def test_fitted_rate_keeps_mean_and_share_of_quiet_machines():
    history = FaultCounts(np.array([0] * 70 + [1] * 15 + [2] * 10 + [40] * 5), days=10.0)

    fitted = history.fitted()

    assert fitted.rate_per_day == history.rate_per_day
    assert fitted.generating(0.0, days=10.0) == pytest.approx(0.7, rel=1e-9)


def test_counts_without_spread_fit_a_poisson():
    assert FaultCounts(np.ones(20, dtype=np.int64), days=10.0).fitted() == FaultRate(0.1)
    assert FaultCounts(np.zeros(20, dtype=np.int64), days=10.0).fitted() == FaultRate(0.0)


@pytest.mark.parametrize(
    ("n_canary", "rate", "margin", "prototype"),
    [
        (64, 0.2, 2, 0.84),
        (64, 0.05, 2, 0.34),
        (64, 0.05, 3, 0.73),
        (256, 0.05, 2, 0.90),
        (256, 0.02, 2, 0.59),
        (8, 0.2, 2, 0.16),
    ],
)
def test_fault_power_is_that_of_the_simulated_prototype(n_canary, rate, margin, prototype):
    # 3 days, 1:4 arms, lemons; the simulation had all four checkpoints and 400 to
    # 1,200 waves, the formula has the last checkpoint only: 6 points of room.
    power = fault_ni_power(
        lemon_counts(rate, days=14.0, machines=200_000),
        n_canary=n_canary,
        n_control=4 * n_canary,
        days=3.0,
        margin=margin,
        bound=LAST_BOUND,
    )

    assert power == pytest.approx(prototype, abs=0.06)


def test_eight_canaries_of_three_days_never_decide_faults():
    for rate in (0.005, 0.02, 0.05, 0.2):
        power = fault_ni_power(
            FaultRate(rate), n_canary=8, n_control=32, days=3.0, margin=2.0, bound=LAST_BOUND
        )
        assert not is_decidable(power)


def test_exposure_needed_at_a_healthy_fleet_s_rate_is_the_published_one():
    # 0.0038 hard faults per machine-day, margin 1 + .005/.0038: about 1,850 canary
    # machine-days for 50 % and 3,900 for 80 %.
    margin = effective_margin(2.0, rate_before_per_day=0.0038, delta_abs=0.005)
    needed = [
        needed_exposure(
            FaultRate(0.0038, dispersion=0.5),
            n_canary=400,
            n_control=1600,
            margin=margin,
            bound=LAST_BOUND,
            power=power,
        )
        for power in (0.5, 0.8)
    ]

    assert needed == pytest.approx([1850, 3900], rel=0.1)


def test_needed_exposure_has_the_power_that_was_asked_for():
    history = lemon_counts(0.05, days=14.0)
    arms = {"n_canary": 64, "n_control": 256, "margin": 2.0, "bound": LAST_BOUND}

    days = needed_exposure(history, power=0.6, **arms) / 64

    assert fault_ni_power(history, days=days, **arms) == pytest.approx(0.6, abs=1e-4)


def test_faults_that_never_happened_before_cannot_be_decided():
    history = FaultCounts(np.zeros(50, dtype=np.int64), days=14.0)
    arms = {"n_canary": 64, "n_control": 256, "bound": LAST_BOUND}
    margin = effective_margin(2.0, rate_before_per_day=history.rate_per_day, delta_abs=0.005)

    assert margin == math.inf
    assert fault_ni_power(history, days=30.0, margin=margin, **arms) == 0
    assert needed_exposure(history, margin=2.0, **arms) == math.inf


@given(st.integers(4, 300), st.floats(0.005, 0.3), st.floats(1.5, 4.0))
def test_fault_power_falls_with_the_true_ratio_to_the_level_of_the_bound_at_the_margin(
    n_canary, rate, margin
):
    arms = {"n_canary": n_canary, "n_control": 4 * n_canary, "days": 3.0, "bound": LAST_BOUND}
    history = FaultRate(rate, dispersion=0.5)

    powers = [
        fault_ni_power(history, margin=margin, rate_ratio=ratio, **arms)
        for ratio in (1.0, (1 + margin) / 2, margin)
    ]

    # Below an even chance the normal approximation need not be monotone.
    assert powers == sorted(powers, reverse=True) or not is_decidable(powers[0])
    assert powers[-1] <= norm.sf(LAST_BOUND) + 1e-9


def needed_canaries(sigma: float, *, delta: float, power: float) -> float:
    """(bound + z)^2 sigma^2 (1 + n_c/n_k) / delta^2 at four controls per canary."""
    return ((LAST_BOUND + norm.ppf(power)) * sigma / delta) ** 2 * (1 + 1 / 4)


def test_throughput_power_follows_the_closed_form():
    count = round(needed_canaries(0.03, delta=0.02, power=0.9))

    power = throughput_ni_power(
        0.03, n_canary=count, n_control=4 * count, delta=0.02, bound=LAST_BOUND
    )

    assert power == pytest.approx(0.9, abs=0.02)


def test_a_drop_at_the_margin_is_shown_as_often_as_the_bound_allows():
    power = throughput_ni_power(
        0.03, n_canary=64, n_control=256, delta=0.02, bound=LAST_BOUND, drop=0.02
    )

    assert power == pytest.approx(norm.sf(LAST_BOUND))


def test_recovery_needs_twenty_five_to_forty_interruptions():
    counts = [
        needed_canaries(RECOVERY_SIGMA, delta=math.log(RECOVERY_MARGIN), power=power)
        for power in (0.7, 0.9)
    ]

    assert 23 < counts[0] < counts[1] < 42
    assert not is_decidable(recovery_ni_power(10, 40, bound=LAST_BOUND))
    assert is_decidable(recovery_ni_power(30, 120, bound=LAST_BOUND))


@pytest.mark.parametrize(("interruptions", "prototype"), [(5, 0.03), (10, 0.12), (38, 0.52)])
def test_severe_path_power_is_that_of_the_simulated_prototype(interruptions, prototype):
    # 8 canaries at .2, 64 at .05 and at .2 faults per day, 3 days.
    power = severe_ni_power(interruptions, 4 * interruptions, bound=LAST_BOUND)

    assert power == pytest.approx(prototype, abs=0.06)


def every_table(share: float, *, n_canary: int, n_control: int, rise: float, level: float) -> float:
    """Chance of all pairs of counts whose hypergeometric tail lies within the level."""
    canaries, controls = np.arange(n_canary + 1)[:, None], np.arange(n_control + 1)
    tail = hypergeom.sf(canaries - 1, n_canary + n_control, n_canary, canaries + controls)
    chance = binom.pmf(canaries, n_canary, share + rise) * binom.pmf(controls, n_control, share)
    return float(chance[tail <= level].sum())


@pytest.mark.parametrize("rise", [0.02, 0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize(
    ("n_canary", "n_control", "share", "level"),
    [
        (8, 32, 0.02, 0.05),
        (64, 256, 0.02, 0.002),
        (20, 580, 0.02, 0.0005),
        (38, 154, 0.17, 0.05),
        (38, 154, 0.17, 0.004),
    ],
)
def test_a_share_that_rises_is_found_as_often_as_all_tables_say(
    n_canary, n_control, share, level, rise
):
    wave = {"n_canary": n_canary, "n_control": n_control, "rise": rise, "level": level}

    assert share_halt_power(share, **wave) == pytest.approx(every_table(share, **wave), abs=0.006)


def test_with_many_hits_a_share_is_found_as_often_as_the_exact_test_finds_it(monkeypatch):
    wave = {"n_canary": 400, "n_control": 1_600, "rise": 0.06, "level": 0.004}
    exact = share_halt_power(0.17, **wave)
    monkeypatch.setattr(power, "_MANY_HITS", 300.0)

    assert 0.4 < exact < 0.6
    assert share_halt_power(0.17, **wave) == pytest.approx(exact, abs=0.03)


def test_a_margin_beyond_every_share_is_ruled_out_with_ease():
    assert severe_ni_power(60, 240, bound=LAST_BOUND, share=0.17, margin=0.9) > 0.99


@pytest.mark.parametrize(("share", "margin"), [(-0.1, 0.2), (1.0, 0.1), (0.2, 0.0), (0.2, 1.0)])
def test_an_impossible_share_or_margin_is_refused(share, margin):
    with pytest.raises(InvalidSample, match="a share lies in"):
        severe_ni_power(60, 240, bound=LAST_BOUND, share=share, margin=margin)


def test_no_interruption_decides_nothing():
    assert recovery_ni_power(0, 40, bound=LAST_BOUND) == 0
    assert severe_ni_power(0, 0, bound=LAST_BOUND) == 0


def test_install_power_counts_the_outcomes_that_pass():
    assert install_ni_power(59, failure_share=0.01, limit=0.05, beta=0.05) == pytest.approx(
        0.99**59
    )
    assert install_ni_power(0, failure_share=0.0, limit=0.05, beta=0.05) == 0


@pytest.mark.parametrize(
    ("n_canary", "rate", "ratio", "prototype"),
    [
        (64, 0.05, 2, 0.47),
        (64, 0.05, 3, 0.86),
        (64, 0.2, 2, 0.88),
        (64, 0.02, 3, 0.55),
        (256, 0.05, 2, 0.91),
        (256, 0.005, 3, 0.72),
        (8, 0.2, 3, 0.49),
    ],
)
def test_halt_power_without_a_past_is_that_of_the_simulated_prototype(
    n_canary, rate, ratio, prototype
):
    # Lemons, 3 days, alpha .05; 72 looks in the simulation, one in the formula.
    power = fault_halt_power(
        Untold(lemon_counts(rate, days=14.0, machines=200_000)),
        n_canary=n_canary,
        n_control=4 * n_canary,
        days=3.0,
        rate_ratio=ratio,
        alpha=0.05,
    )

    assert power == pytest.approx(prototype, abs=0.06)


@pytest.mark.parametrize(
    ("rate", "ratio", "halted"), [(0.2, 2, 0.950), (0.05, 2, 0.600), (0.02, 3, 0.680)]
)
def test_halt_power_with_a_past_is_that_of_the_adopted_score(rate, ratio, halted):
    # `python -m benchmarks.ideas --replications 300`: standard errors of 1.3 to 2.8 points.
    power = fault_halt_power(
        lemon_counts(rate, days=14.0, machines=200_000),
        n_canary=64,
        n_control=256,
        days=3.0,
        rate_ratio=ratio,
        alpha=0.05,
    )

    assert power == pytest.approx(halted, abs=3 * math.sqrt(halted * (1 - halted) / 300))


def test_a_past_that_tells_machines_apart_makes_faults_cheaper_before_a_halt():
    history = lemon_counts(0.2, days=14.0)
    wave = {"n_canary": 64, "n_control": 256, "alpha": 0.01, "window_days": 3.0}

    told, untold = (expected_excess_faults(one, **wave) for one in (history, Untold(history)))

    assert told.expected < untold.expected


def test_halt_power_of_no_effect_stays_within_its_level():
    for alpha in (0.0, 0.003, 0.05):
        power = fault_halt_power(
            FaultRate(0.05), n_canary=64, n_control=256, days=3.0, rate_ratio=1.0, alpha=alpha
        )
        assert power <= alpha


@pytest.mark.parametrize("alpha", [0.0, 0.003, 0.05])
def test_halt_power_of_no_effect_is_the_level_where_the_past_tells_machines_apart(alpha):
    power = fault_halt_power(
        lemon_counts(0.05, days=14.0),
        n_canary=64,
        n_control=256,
        days=3.0,
        rate_ratio=1.0,
        alpha=alpha,
    )

    assert power == pytest.approx(alpha, abs=0.002)


def test_the_third_default_wave_costs_at_most_sixteen_excess_faults():
    # Simulated for 2,000 machines at .0038 faults per day and level .003: halted by
    # this wave in 39 / 76 / 100 % for RR 2.3 / 3 / 5, excess faults <= 16.
    history = Untold(lemon_counts(0.0038, days=28.0, machines=200_000))
    wave = {"n_canary": 400, "n_control": 1480, "alpha": 0.003}

    worst = expected_excess_faults(history, window_days=7.0, **wave)
    halts = [fault_halt_power(history, days=7.0, rate_ratio=ratio, **wave) for ratio in (2.3, 3, 5)]

    assert halts == pytest.approx([0.39, 0.76, 1.0], abs=0.06)
    assert 8 < worst.expected <= 16
    assert 2 < worst.rate_ratio < 5


def test_excess_faults_without_any_halt_are_all_of_the_window_and_its_extension():
    worst = expected_excess_faults(
        FaultRate(0.01),
        n_canary=10,
        n_control=90,
        window_days=4.0,
        extension_share=0.5,
        alpha=0.0,
        rate_ratios=(3.0,),
    )

    assert worst.expected == pytest.approx(2 * 0.01 * 10 * 6.0)


def test_a_longer_wave_costs_more_and_a_larger_level_less():
    def cost(**changes):
        plan = {"n_canary": 100, "n_control": 1800, "window_days": 7.0, "alpha": 0.003}
        return expected_excess_faults(FaultRate(0.0038), **(plan | changes)).expected

    assert cost(window_days=14.0) > cost()
    assert cost(alpha=0.05) < cost()
    assert cost(extension_share=0.5) > cost()


def test_impossible_plans_are_refused():
    arms = {"n_canary": 4, "n_control": 16}
    with pytest.raises(InvalidSample, match="each arm"):
        throughput_ni_power(0.02, n_canary=0, n_control=4, delta=0.02, bound=1.8)
    with pytest.raises(InvalidSample, match="margin exceeds 1"):
        fault_ni_power(FaultRate(0.1), days=3.0, margin=1.0, bound=1.8, **arms)
    with pytest.raises(InvalidSample, match="not negative"):
        FaultCounts(np.array([-1, 2]), days=3.0)
    with pytest.raises(InvalidSample, match="finite"):
        FaultRate(math.nan)
    with pytest.raises(InvalidSample, match="shares and a level"):
        share_halt_power(0.5, rise=0.6, level=0.05, **arms)
    with pytest.raises(InvalidLevel, match="power"):
        needed_exposure(FaultRate(0.1), margin=2.0, bound=1.8, power=1.0, **arms)
    with pytest.raises(InvalidLevel, match="alpha"):
        fault_halt_power(FaultRate(0.1), days=3.0, rate_ratio=2.0, alpha=1.0, **arms)


def test_fault_power_is_no_larger_than_the_chance_of_any_control_event():
    history = FaultRate(1e-5)

    power = fault_ni_power(
        history, n_canary=64, n_control=256, days=3.0, margin=2.0, bound=LAST_BOUND
    )

    assert 0 < power < 256 * 3e-5


def test_a_harm_that_hits_every_canary_every_day_is_found_by_a_handful_of_canaries():
    # 7 of 7 against a fifth of 335: any level is reached, and there is nothing left to vary.
    power = fault_halt_power(
        FaultRate(0.2), n_canary=7, n_control=335, days=1.0, rate_ratio=100.0, alpha=0.001
    )

    assert power > 0.99


# --- lost work -------------------------------------------------------------------------------


def test_lost_work_is_found_as_often_as_a_simulated_test_finds_it():
    rng = np.random.default_rng(3)
    units, days, rate = 100, 10.0, 0.05

    def roots(size: int, *, ratio: float) -> np.ndarray:
        counts = rng.poisson(rate * days * ratio, size)
        each = np.sqrt(np.minimum(rng.exponential(0.5, counts.sum()), 8.0))
        return np.bincount(np.repeat(np.arange(size), counts), weights=each, minlength=size)

    past = roots(20_000, ratio=1.0)
    history = power.LostWork(
        mean=past.mean(),
        variance=past.var(),
        within=rate * days * 0.5,  # squared roots are hours
        days=days,
    )
    found = 0
    for _ in range(1_000):
        canary, control = roots(units, ratio=1.7), roots(4 * units, ratio=1.0)
        pooled = np.concatenate([canary, control]).std() * np.sqrt(1 / units + 1 / (4 * units))
        found += (canary.mean() - control.mean()) / pooled > 1.645

    chance = power.lost_work_halt_power(
        history, n_canary=units, n_control=4 * units, days=days, ratio=1.7, alpha=0.05
    )

    assert chance == pytest.approx(found / 1_000, abs=0.06)


def test_no_more_lost_work_is_found_at_the_level_alone():
    history = power.LostWork(mean=0.4, variance=0.5, within=0.45, days=10.0)

    chance = power.lost_work_halt_power(
        history, n_canary=50, n_control=200, days=7.0, ratio=1.0, alpha=0.05
    )

    assert chance == pytest.approx(0.05)


@pytest.mark.parametrize("bad", [(-1.0, 1.0, 1.0, 1.0), (1.0, np.nan, 1.0, 1.0), (1, 1, 1, 0.0)])
def test_lost_work_of_nonsense_is_refused(bad: tuple[float, float, float, float]):
    with pytest.raises(InvalidSample, match="lost work is finite"):
        power.LostWork(*bad)
