"""Which change explains a spike: hand cases, an independent computation, error rates."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, hypergeom

from rollouts.analysis.errors import InvalidSample
from rollouts.analysis.suspects import balance_p, suspicion

INF = math.inf


def seen(events: list[tuple[int, float]], touched: list[float], **windows: float):
    return suspicion(
        np.array([machine for machine, _ in events], dtype=np.int64),
        np.array([hour for _, hour in events], dtype=np.float64),
        touched_hours=np.array(touched),
        **{"until_hours": 10.0, "before_hours": 10.0, **windows},
    )


def test_machine_time_counts_as_touched_from_the_change_on():
    # Of two machines one is touched at hour 4: 6 h with the change, 10 + 4 h without.
    found = seen([(0, 3.9), (0, 4.0), (1, 5.0)], [4.0, INF])

    assert (found.touched.events, found.touched.exposure_hours) == (1, 6.0)
    assert (found.untouched.events, found.untouched.exposure_hours) == (2, 14.0)


def test_the_time_before_compares_the_same_machines_without_the_change():
    # Machine 0 was touched 4 h before the spike: of its 10 h before, 6 are clean.
    found = seen([(0, -5.0), (0, -1.0), (1, -1.0)], [-4.0, INF])

    assert (found.touched_before.events, found.touched_before.exposure_hours) == (1, 6.0)
    assert (found.untouched_before.events, found.untouched_before.exposure_hours) == (1, 10.0)


def test_a_change_that_touched_everybody_is_not_compared_with_anybody():
    found = seen([(0, 1.0), (1, 2.0)], [0.0, 0.0])

    assert found.after is None
    assert found.share is None
    assert found.rank < seen([], [0.0, INF]).rank


def test_without_a_spike_there_is_nothing_to_explain():
    found = seen([(0, -5.0), (1, -5.0), (0, 5.0)], [0.0, INF])

    assert found.excess == -1.0
    assert found.share is None


def test_the_interval_is_the_exact_one_of_the_binomial_given_the_total():
    # Independent: scipy's Clopper-Pearson interval for 7 of 10 events, turned into odds.
    events = [(0, float(hour)) for hour in range(7)] + [(1, 1.0), (2, 1.0), (3, 1.0)]
    found = seen(events, [0.0, INF, INF, INF])

    low, high = binomtest(7, 10).proportion_ci(0.95, method="exact")

    assert found.after is not None
    assert found.after.low == pytest.approx(low / (1 - low) * 3)
    assert found.after.high == pytest.approx(high / (1 - high) * 3)


def test_a_head_start_that_was_there_before_counts_against_a_suspect():
    spike = [(0, float(hour)) for hour in range(8)] + [(1, 1.0)]
    always = spike + [(0, -float(hour)) for hour in range(1, 9)] + [(1, -1.0)]

    new, old = seen(spike, [0.0, INF]), seen(always, [0.0, INF])

    assert new.after == old.after
    assert new.rank > old.rank


def test_the_change_that_did_it_ranks_above_one_that_touched_others():
    spike = [(machine, float(hour)) for machine in range(3) for hour in range(4)]

    culprit = seen(spike, [0.0] * 3 + [INF] * 17)
    bystander = seen(spike, [INF] * 10 + [0.0] * 10)

    assert culprit.rank > bystander.rank
    assert (culprit.share, bystander.share) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"until_hours": 0.0}, "until_hours is 0.0"),
        ({"before_hours": INF}, "before_hours is inf"),
        ({"touched": []}, "no machines"),
        ({"touched": [math.nan]}, "not a number"),
        ({"events": [(3, 1.0)]}, "machine 3"),
        ({"events": [(0, math.nan)]}, "not a number"),
    ],
)
def test_nonsense_is_refused_by_name(broken, words):
    given = {"events": [(0, 1.0)], "touched": [0.0], **broken}
    with pytest.raises(InvalidSample, match=words):
        seen(given.pop("events"), given.pop("touched"), **given)


@pytest.mark.statistical
def test_an_innocent_change_is_below_one_as_often_as_its_interval_says():
    # Poisson faults at one rate on 40 machines; the change touched 10 of them at random times.
    rng = np.random.default_rng(11)
    runs, missed = 2000, 0
    for _ in range(runs):
        touched = np.full(40, INF)
        touched[:10] = rng.uniform(-20, 80, 10)
        counts = rng.poisson(0.05 * 100, 40)
        machine = np.repeat(np.arange(40), counts)
        hours = rng.uniform(0, 100, counts.sum())
        found = suspicion(
            machine, hours, touched_hours=touched, until_hours=100.0, before_hours=100.0
        )
        missed += found.after is not None and not found.after.low <= 1 <= found.after.high

    # At most 5 %, and two standard errors.
    assert missed / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)


# --- balance -------------------------------------------------------------------------------------


def test_the_balance_of_a_change_over_the_arms_is_fishers_exact_test():
    # Independent: add up the hypergeometric probabilities that are no greater than that of 1.
    chances = [hypergeom.pmf(k, 20, 8, 7) for k in range(8)]
    expected = sum(p for p in chances if p <= chances[1] * (1 + 1e-9))

    assert balance_p(1, 8, 6, 12) == pytest.approx(expected)


def test_a_change_that_reached_both_arms_alike_is_balanced():
    assert balance_p(64, 64, 256, 256) == 1.0
    assert balance_p(0, 64, 128, 256) < 0.001


def test_more_touched_than_there_are_is_refused():
    with pytest.raises(InvalidSample, match="9 of 8 canaries"):
        balance_p(9, 8, 0, 12)
