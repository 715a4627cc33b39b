"""Where a guardrail's drawing puts its marks."""

import pytest

from rollouts.analysis.policy import Guardrail, Metric
from rollouts.charts import WIDTH, interval_bar
from tests.rollouts.rows import seen

FAULTS = Guardrail("faults", Metric.FAULTS, True, True, margin=2.0, tolerance=1.0)
THROUGHPUT = Guardrail("throughput", Metric.THROUGHPUT, True, True, margin=0.02, tolerance=0.01)
SEVERE = Guardrail("severe_path", Metric.SEVERE_PATH, None, True, margin=0.15, tolerance=0.0)
LOST = Guardrail("lost_work", Metric.LOST_WORK, None, True, margin=0.0, tolerance=0.0)
NOVEL = Guardrail("novel", Metric.NOVEL_SIGNATURES, None, True, margin=0.0, tolerance=0.0)


def bar(guardrail: Guardrail, **changes):
    return interval_bar(seen(guardrail.name, guardrail.metric, **changes), guardrail)


def test_no_effect_lies_in_the_middle():
    assert bar(FAULTS).null == WIDTH / 2
    assert bar(SEVERE, unit="difference").null == WIDTH / 2


def test_a_ratio_and_its_inverse_lie_equally_far_from_no_effect():
    twice = bar(FAULTS, estimate=2.0).estimate
    half = bar(FAULTS, estimate=0.5).estimate

    assert twice - WIDTH / 2 == pytest.approx(WIDTH / 2 - half)


def test_for_throughput_the_margin_lies_below_no_effect():
    drawn = bar(THROUGHPUT, estimate=0.98)

    assert drawn.margin < drawn.tolerance < drawn.null
    assert drawn.estimate == drawn.margin
    assert not drawn.worse_is_higher


def test_for_faults_the_margin_lies_above_no_effect():
    drawn = bar(FAULTS)

    assert drawn.null == drawn.tolerance < drawn.margin
    assert drawn.worse_is_higher


def test_an_interval_that_leaves_the_drawing_is_cut_and_says_so():
    drawn = bar(FAULTS, repeated={"low": 0.001, "high": 1000.0, "level": 0.95})

    assert drawn.is_low_cut
    assert drawn.is_high_cut
    assert 0 < drawn.low < drawn.high < WIDTH


def test_an_open_end_is_drawn_to_the_edge():
    drawn = bar(FAULTS, repeated={"low": 1.2, "high": None, "level": 0.95})

    assert drawn.is_high_cut
    assert drawn.high > drawn.margin


def test_an_estimate_of_no_events_lies_at_the_edge():
    drawn = bar(FAULTS, estimate=0.0, repeated={"low": 0.0, "high": 1.5, "level": 0.95})

    assert drawn.estimate == drawn.low
    assert drawn.is_low_cut


def test_nothing_known_draws_no_interval():
    drawn = bar(FAULTS, estimate=None, repeated={"low": None, "high": None, "level": 0.95})

    assert drawn.length == 0
    assert drawn.estimate is None


def test_a_metric_without_a_margin_has_no_limits_to_draw():
    drawn = bar(
        NOVEL, unit="difference", estimate=2.0, repeated={"low": 0.0, "high": 4.0, "level": 0.95}
    )

    assert drawn.margin is None
    assert drawn.tolerance is None
    assert drawn.high < WIDTH
