"""Exact statements about installs, novel signatures and rates."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.proportions import (
    Bound,
    HardStop,
    clopper_pearson,
    hard_stop,
    install_log_e,
    judge_installs,
    novel_p_value,
    rate_ratio_exact,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


@pytest.mark.parametrize(
    "vector",
    VECTORS["install_failure_log_evalue"],
    ids=lambda vector: f"{vector['failures']} of {vector['attempts']}",
)
def test_install_evidence_and_bound_match_fifty_digits(vector):
    x, n, p0 = vector["failures"], vector["attempts"], float(vector["p0"])

    assert install_log_e(x, n, p0=p0) == pytest.approx(vector["log_e"], rel=1e-10)
    assert clopper_pearson(x, n, level=0.95, side=Bound.UPPER) == pytest.approx(
        vector["clopper_pearson_upper95_one_sided"], rel=1e-10
    )


def test_install_evidence_of_a_huge_clean_fleet_does_not_underflow():
    # With no failure the tail is (1-p0)**(n+1), so E = B(1, n+1) = 1/(n+1), whatever p0.
    assert install_log_e(0, 100_000, p0=0.01) == pytest.approx(-math.log(100_001), rel=1e-10)


def test_install_evidence_is_a_martingale_at_the_tolerated_share():
    p0 = 0.03

    for n in range(6):
        for x in range(n + 1):
            here = math.exp(install_log_e(x, n, p0=p0))
            failed = math.exp(install_log_e(x + 1, n + 1, p0=p0))
            worked = math.exp(install_log_e(x, n + 1, p0=p0))
            assert p0 * failed + (1 - p0) * worked == pytest.approx(here, rel=1e-11)


def test_two_failures_of_eight_halt_at_five_percent_but_not_at_a_small_share():
    assert judge_installs(2, 8, baseline=0.0, alpha=0.05, beta=0.05).is_harmful
    assert not judge_installs(2, 8, baseline=0.0, alpha=0.02, beta=0.05).is_harmful
    assert not judge_installs(8, 8, baseline=0.0, alpha=0.0, beta=0.05).is_harmful


def test_fifty_nine_clean_installs_show_a_limit_of_five_percent():
    assert judge_installs(0, 59, baseline=0.0, alpha=0.01, beta=0.05).is_not_worse
    assert not judge_installs(0, 58, baseline=0.0, alpha=0.01, beta=0.05).is_not_worse


def test_the_tolerated_share_follows_the_fleet_s_own_baseline():
    verdict = judge_installs(0, 1, baseline=0.02, alpha=0.01, beta=0.05)

    assert (verdict.tolerated, verdict.limit) == (pytest.approx(0.03), pytest.approx(0.07))


def test_no_attempt_proves_nothing():
    verdict = judge_installs(0, 0, baseline=0.0, alpha=0.05, beta=0.05)

    assert (verdict.log_e, verdict.upper) == (pytest.approx(0.0, abs=1e-12), 1.0)
    assert not verdict.is_harmful
    assert not verdict.is_not_worse


@pytest.mark.statistical
def test_a_harmless_bundle_with_a_baseline_of_machines_that_do_not_return_is_rarely_halted():
    # 500 machines, 1.3 % do not return from any reboot, judged after every install
    # at the whole level of 5 %: tolerated is 1.95 %.
    rng = np.random.default_rng(13)
    halting = [
        next(
            (
                x
                for x in range(n + 1)
                if judge_installs(x, n, baseline=0.013, alpha=0.05, beta=0.05).is_harmful
            ),
            n + 1,
        )
        for n in range(1, 501)
    ]
    failures = np.cumsum(rng.random((2_000, 500)) < 0.013, axis=1)

    halted = int((failures >= np.array(halting)).any(axis=1).sum())

    assert binom.sf(halted - 1, 2_000, 0.05) > 0.01
    certain = np.cumsum(rng.random((200, 500)) < 0.10, axis=1)
    assert (certain >= np.array(halting)).any(axis=1).mean() > 0.95


def test_bricks_beyond_the_allowed_stop_at_once():
    assert hard_stop([], bricks=1, max_bricks=0) is HardStop.BRICKS
    assert hard_stop([], bricks=1, max_bricks=1) is None


def test_three_failures_among_the_first_ten_stop_at_once():
    assert hard_stop([True] * 3, bricks=0, max_bricks=0) is HardStop.EARLY_FAILURES
    late = [False] * 8 + [True, True, True]
    assert hard_stop(late, bricks=0, max_bricks=0) is None


@pytest.mark.parametrize("vector", VECTORS["novel_signature_hypergeom"], ids=lambda v: v["p_exact"])
def test_novel_signatures_have_the_exact_hypergeometric_tail(vector):
    p = novel_p_value(
        vector["n"],
        n_canary=vector["n_canary"],
        machines=vector["distinct_machines_with_novel"],
        of_which_canary=vector["of_which_canary"],
    )

    assert p == pytest.approx(vector["p"], rel=1e-10)
    assert p == pytest.approx(float(Fraction(vector["p_exact"])), rel=1e-10)


def test_impossible_novel_counts_are_refused():
    with pytest.raises(InvalidSample, match="3 canaries cannot"):
        novel_p_value(10, n_canary=2, machines=4, of_which_canary=3)
    with pytest.raises(InvalidSample, match="0 canaries cannot"):
        novel_p_value(10, n_canary=8, machines=4, of_which_canary=0)


@pytest.mark.parametrize(
    "vector",
    VECTORS["rate_ratio_exact_conditional_ci95"],
    ids=lambda v: f"{v['x_canary']} against {v['x_control']}",
)
def test_rate_ratio_interval_matches_the_independent_value(vector):
    ratio = rate_ratio_exact(
        vector["x_canary"], vector["t_canary"], vector["x_control"], vector["t_control"]
    )

    low, high = vector["ci"]
    assert ratio.low == pytest.approx(low, rel=1e-10)
    assert ratio.high == (math.inf if high is None else pytest.approx(high, rel=1e-10))


def test_no_canary_faults_has_the_closed_form_upper_bound():
    # With 0 of n events on the canary, Clopper-Pearson gives 1 - tail**(1/n).
    share = 1 - 0.025 ** (1 / 12)

    ratio = rate_ratio_exact(0, 100.0, 12, 100.0)

    assert ratio.low == 0
    assert ratio.high == pytest.approx(share / (1 - share))


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_swapping_the_arms_inverts_the_rate_ratio(x, y, t, u):
    ratio, swapped = rate_ratio_exact(x, t, y, u), rate_ratio_exact(y, u, x, t)

    if x:
        assert ratio.low == pytest.approx(1 / swapped.high, rel=1e-7)
        assert swapped.estimate == pytest.approx(0 if not y else 1 / ratio.estimate)
    else:
        assert (ratio.low, swapped.high) == (0, math.inf)


def test_no_event_at_all_leaves_the_ratio_open():
    ratio = rate_ratio_exact(0, 1.0, 0, 1.0)

    assert math.isnan(ratio.estimate)
    assert (ratio.low, ratio.high) == (0, math.inf)


def test_impossible_counts_exposures_and_levels_are_refused():
    with pytest.raises(InvalidSample):
        rate_ratio_exact(-1, 1.0, 0, 1.0)
    with pytest.raises(InvalidSample):
        rate_ratio_exact(1, 0.0, 0, 1.0)
    with pytest.raises(InvalidLevel):
        rate_ratio_exact(1, 1.0, 0, 1.0, confidence_level=1.0)
    with pytest.raises(InvalidSample):
        install_log_e(3, 2, p0=0.1)
    with pytest.raises(InvalidLevel):
        install_log_e(1, 2, p0=0.0)


def test_the_policy_sets_what_is_tolerated_and_the_margin() -> None:
    usual = judge_installs(3, 100, baseline=0.0, alpha=0.05, beta=0.05)
    lax = judge_installs(3, 100, baseline=0.0, alpha=0.05, beta=0.05, tolerance=0.05, margin=0.3)

    assert (usual.tolerated, usual.limit) == (0.01, pytest.approx(0.05))
    assert (lax.tolerated, lax.limit) == (0.05, pytest.approx(0.35))
    assert lax.is_not_worse
    assert not usual.is_not_worse
