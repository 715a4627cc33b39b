"""Levels are exact rationals; bounds match published and independent tables."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from rollouts.analysis.errors import AnalysisError, InvalidLevel, NoGuardrails
from rollouts.analysis.spending import (
    CHECKPOINTS,
    METRIC_SHARES,
    HaltClaim,
    exact,
    halt_level,
    ni_bounds,
    ni_level,
    share_alpha,
    surveillance_alpha,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
SPENDING = {
    "LD-OBF": lambda alpha, t: 2 * norm.sf(norm.isf(alpha / 2) / math.sqrt(t)),
    "LD-Pocock": lambda alpha, t: alpha * math.log(1 + (math.e - 1) * t),
    "alpha*t^1.5": lambda alpha, t: alpha * t**1.5,
}


@pytest.mark.parametrize(
    "vector",
    VECTORS["lan_demets_one_sided_bounds"],
    ids=lambda vector: f"{vector['spend']}-{vector['alpha']}",
)
def test_bounds_match_the_independent_quadrature(vector):
    spend, alpha = SPENDING[vector["spend"]], vector["alpha"]
    levels = [spend(alpha, t) for t in vector["info"]]

    bounds = ni_bounds(levels, information=vector["info"])

    assert bounds == pytest.approx(vector["z"], abs=1e-4)
    # ldbounds itself is off by 1.1e-4 at the second look: its 3.3569 spends 3.9377e-4 where
    # 3.9361e-4 were planned (two-dimensional integral by scipy.integrate.quad).
    assert bounds == pytest.approx(vector.get("published_ldbounds", vector["z"]), abs=1.2e-4)


def test_bounds_of_a_plan_without_extension():
    levels = [ni_level(0.05, t, has_extension=False) for t in CHECKPOINTS]

    bounds = ni_bounds(levels, information=CHECKPOINTS)

    assert [round(z, 3) for z in bounds] == [2.498, 2.202, 1.996, 1.827]


def test_bounds_of_a_plan_with_an_extension_of_half_a_window():
    levels = [ni_level(0.05, t, has_extension=True) for t in CHECKPOINTS]
    levels.append(ni_level(0.05, 1, at_extension_end=True, has_extension=True))

    bounds = ni_bounds(levels, information=[*CHECKPOINTS, Fraction(3, 2)])

    assert [round(z, 3) for z in bounds] == [2.576, 2.291, 2.096, 1.936, 2.009]


def test_one_bound_is_the_normal_quantile():
    assert ni_bounds([0.05], information=[7]) == pytest.approx((norm.isf(0.05),), abs=1e-10)


def test_bounds_at_uneven_looks_spend_what_was_planned():
    # Independent check: P(no crossing) by the multivariate normal integral of scipy.
    times, levels = [0.31, 0.58, 1.0], [0.01, 0.02, 0.05]

    bounds = ni_bounds(levels, information=times)

    covariance = [[math.sqrt(min(a, b) / max(a, b)) for a in times] for b in times]
    for k in (1, 2):
        inside = multivariate_normal.cdf(
            bounds[: k + 1],
            cov=np.array(covariance)[: k + 1, : k + 1],
            rng=np.random.default_rng(1),
            abseps=1e-8,
            releps=1e-8,
            maxpts=2_000_000,
        )
        assert 1 - inside == pytest.approx(levels[k], abs=1e-6)


def test_a_look_that_spends_nothing_has_no_bound():
    bounds = ni_bounds([0.0, 0.02, 0.02, 0.05], information=[1, 2, 3, 4])

    assert bounds[0] == bounds[2] == math.inf
    assert bounds[1] == pytest.approx(norm.isf(0.02), abs=1e-9)


@pytest.mark.parametrize(
    ("levels", "information"),
    [([0.02, 0.01], [1, 2]), ([0.01, 0.02], [2, 1]), ([0.1, 1.0], [1, 2]), ([], []), ([0.1], [0])],
)
def test_bounds_refuse_levels_and_information_out_of_order(levels, information):
    with pytest.raises(InvalidLevel):
        ni_bounds(levels, information=information)


def test_halting_spends_the_three_quarter_power_of_elapsed_time():
    for elapsed in (0.01, 1 / 3, 0.5, 0.999, 1.0):
        spent = halt_level(0.05, elapsed, has_extension=False)

        assert float(spent) == pytest.approx(0.05 * elapsed**0.75, abs=1e-13)


def test_a_planned_extension_keeps_a_fifth():
    assert halt_level(0.05, 1, has_extension=True) == Fraction(1, 25)
    assert halt_level(0.05, 1, 1, has_extension=True) == Fraction(1, 20)
    assert float(halt_level(0.05, 1, 0.5, has_extension=True)) == pytest.approx(
        0.05 * (0.8 + 0.2 * 0.5**0.75), abs=1e-13
    )


def test_levels_are_pinned_rationals():
    # The decimals of 0.5 ** 0.75 = 0.594603557501360533... are cut, never rounded up.
    assert halt_level(1 / 2, 0.5, has_extension=False) == Fraction(594603557501, 2 * 10**12)
    assert ni_level(1 / 2, 0.5, has_extension=False) == Fraction(353553390593, 2 * 10**12)


@given(
    st.fractions(0, 3, max_denominator=10**6),
    st.fractions(0, 3, max_denominator=10**6),
    st.booleans(),
)
def test_spent_error_rises_with_time_and_stays_within_its_level(first, second, has_extension):
    early, late = sorted([first, second])

    for spend in (halt_level, ni_level):
        before = spend(Fraction(1, 20), early, has_extension=has_extension)
        after = spend(Fraction(1, 20), late, has_extension=has_extension)
        assert 0 <= before <= after <= Fraction(1, 20)


def test_no_error_is_spent_before_the_window_or_in_an_unplanned_extension():
    assert halt_level(0.05, 0, has_extension=False) == 0
    with pytest.raises(InvalidLevel, match="extension"):
        halt_level(0.05, 1, 0.5, has_extension=False)
    with pytest.raises(InvalidLevel, match="extension"):
        halt_level(0.05, 0.5, 0.5, has_extension=True)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 5, math.nan, math.inf])
def test_levels_outside_their_range_are_refused(bad):
    with pytest.raises(InvalidLevel):
        halt_level(bad, 0.5, has_extension=False)
    with pytest.raises(InvalidLevel):
        halt_level(0.05, -0.5, has_extension=False)


def test_floats_mean_their_decimal_form():
    assert exact(0.05) == Fraction(1, 20)
    assert exact(1e-7) == Fraction(1, 10**7)


ALL = {name: HaltClaim(name) for name in METRIC_SHARES}


def test_default_shares_add_to_one():
    assert sum(METRIC_SHARES.values()) == 1


def test_all_guardrails_of_all_waves_and_the_surveillance_add_to_alpha():
    shares = share_alpha(0.05, ALL, waves=4, has_surveillance=True)

    assert shares["faults"] == Fraction(4, 100) / 4 * Fraction(30, 100)
    assert 4 * sum(shares.values()) + surveillance_alpha(0.05) == Fraction(1, 20)


def test_a_recorded_case_spends_all_alpha_in_its_one_wave():
    shares = share_alpha(0.05, {"all": HaltClaim("faults")}, waves=1, has_surveillance=False)

    assert shares == {"all": Fraction(1, 20)}


def test_guardrails_of_one_metric_divide_its_share():
    claims = {f"family {i}": HaltClaim("faults") for i in range(3)}
    claims["speed"] = HaltClaim("throughput")

    shares = share_alpha(0.05, claims, waves=1, has_surveillance=False)

    assert shares["family 0"] == shares["family 2"] == Fraction(1, 20) * Fraction(30, 55) / 3
    assert sum(shares.values()) == Fraction(1, 20)


def test_a_guardrail_that_only_reports_takes_no_share():
    claims = {
        "one": HaltClaim("faults"),
        "two": HaltClaim("faults", halts=False),
        "speed": HaltClaim("throughput", halts=False),
    }

    shares = share_alpha(0.05, claims, waves=1, has_surveillance=False)

    assert shares == {"one": Fraction(1, 20), "two": 0, "speed": 0}


def test_weights_of_a_policy_replace_the_default_shares():
    weights = {**METRIC_SHARES, "faults": 0.75, "throughput": 0.25}
    claims = {"one": HaltClaim("faults"), "speed": HaltClaim("throughput")}

    shares = share_alpha(0.05, claims, waves=1, has_surveillance=False, weights=weights)

    assert shares == {"one": Fraction(3, 80), "speed": Fraction(1, 80)}


def test_an_error_budget_refuses_what_it_cannot_divide():
    with pytest.raises(NoGuardrails):
        share_alpha(0.05, {}, waves=1, has_surveillance=False)
    with pytest.raises(AnalysisError, match="no weight for smell"):
        share_alpha(0.05, {"x": HaltClaim("smell")}, waves=1, has_surveillance=False)
    with pytest.raises(AnalysisError, match="at least one wave"):
        share_alpha(0.05, ALL, waves=0, has_surveillance=False)
