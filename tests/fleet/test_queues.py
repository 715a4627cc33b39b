"""Time in a state: stays that ended, stays that are open, and what they keep out."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fleet import queues
from fleet.lifecycle import State

T0 = datetime(2026, 3, 2, tzinfo=UTC)


def test_every_state_of_the_way_back_is_one_that_machines_have():
    assert set(queues.OUT) < {state.value for state in State}
    assert [state for state in queues.QUEUES if not state.startswith("awaiting")] == []


def test_a_stay_ends_with_the_next_change_of_the_same_machine():
    back = T0 + timedelta(hours=2)
    changes = [(1, "repairing", T0), (1, "in_service", back), (2, "draining", T0)]

    seen = [(one.machine, one.state, one.until) for one in queues.stays(changes)]

    assert seen == [
        (1, "repairing", back),
        (1, "in_service", None),
        (2, "draining", None),
    ]


def test_without_open_stays_the_restricted_mean_is_the_mean_of_what_is_cut_at_the_horizon():
    rng = np.random.default_rng(5)
    hours = list(rng.lognormal(1.0, 1.5, size=400))

    mean = queues.restricted_mean(hours, horizon_hours=24.0)

    assert mean == pytest.approx(np.minimum(hours, 24.0).mean())


def test_an_open_stay_counts_as_at_least_so_long():
    # Kaplan-Meier by hand: 3 at risk, one ends at 2 (S = 2/3), one is censored at 4, the last ends
    # at 6. Area: 2 + (2/3)(6 - 2) = 14/3. Left out, the open one would give (2 + 6)/2 = 4.
    assert queues.restricted_mean([2.0, 6.0], [4.0], horizon_hours=24.0) == pytest.approx(14 / 3)
    assert queues.restricted_mean([2.0, 6.0], horizon_hours=24.0) == pytest.approx(4.0)


def test_a_mean_of_open_stays_alone_is_not_told():
    assert queues.restricted_mean([], [3.0], horizon_hours=24.0) is None
    assert queues.figures("repairing", ended=[], still=[3.0]).median_hours is None


@pytest.mark.statistical
def test_censoring_does_not_bend_the_restricted_mean():
    # Exponential stays of mean 10 h, watched for an independent uniform time: the restricted mean
    # to 24 h is 10 (1 - exp(-2.4)) = 9.093; the mean of the ended ones alone is far below it.
    rng = np.random.default_rng(11)
    hours, watched = rng.exponential(10.0, 20_000), rng.uniform(0.0, 60.0, 20_000)
    ended = list(hours[hours <= watched])
    still = list(watched[hours > watched])

    mean = queues.restricted_mean(ended, still, horizon_hours=24.0)

    assert mean == pytest.approx(10 * (1 - np.exp(-2.4)), rel=0.01)
    assert np.minimum(ended, 24.0).mean() < 8.5


def test_arrivals_times_time_is_the_number_that_is_out():
    # field-facts b2: 7.8 a day, 40 % of them 30 h, are 3.9 machines out.
    flow = queues.flow(
        "repairing", entered=round(7.8 * 0.4 * 100), days=100.0, mean_hours=30.0, present=4
    )

    assert flow.expected_out == pytest.approx(3.9, abs=0.01)


def test_the_bottleneck_is_the_queue_that_keeps_most_out_and_not_the_work_itself():
    flows = [
        queues.flow("repairing", entered=28, days=28.0, mean_hours=200.0, present=9),
        queues.flow("awaiting_repair", entered=28, days=28.0, mean_hours=20.0, present=1),
        queues.flow("awaiting_release", entered=28, days=28.0, mean_hours=30.0, present=1),
    ]

    worst = queues.bottleneck(flows)

    assert worst is not None
    assert worst.state == "awaiting_release"


def test_without_figures_no_queue_is_called_the_bottleneck():
    flow = queues.flow("awaiting_repair", entered=0, days=28.0, mean_hours=None, present=3)

    assert queues.bottleneck([flow]) is None
