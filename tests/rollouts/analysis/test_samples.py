from dataclasses import replace

import numpy as np
import pytest

from rollouts.analysis.errors import InvalidPolicy, InvalidSample, NoGuardrails, UnitMismatch
from rollouts.analysis.policy import Guardrail, Metric, Policy
from rollouts.analysis.samples import (
    AttemptRows,
    FaultEvents,
    Machines,
    ObservationRows,
    RecoveryRows,
    ServiceIntervals,
    Units,
)
from tests.rollouts.analysis import worlds


def test_unit_names_are_unique():
    with pytest.raises(UnitMismatch, match="unique"):
        Units(("a", "a"), np.array([True, False]), np.zeros(2, int), np.zeros(2))


def test_columns_have_one_length():
    with pytest.raises(UnitMismatch, match="one length"):
        Units(("a", "b"), np.array([True, False]), np.zeros(3, int), np.zeros(2))


def test_a_clock_that_has_not_started_is_infinite_but_never_nan():
    Units(("a", "b"), np.array([True, False]), np.zeros(2, int), np.array([0.0, np.inf]))

    with pytest.raises(InvalidSample, match="clock_start_seconds"):
        Units(("a", "b"), np.array([True, False]), np.zeros(2, int), np.array([0.0, np.nan]))


def test_an_infinite_covariate_is_refused():
    units, _ = worlds.roster(1, 1)

    with pytest.raises(InvalidSample, match="covariate faults"):
        replace(units, covariates={"faults": np.array([1.0, np.inf])})


def test_a_machine_cannot_leave_before_it_enrols():
    with pytest.raises(InvalidSample, match="left_seconds 1"):
        Machines(("a",), np.zeros(1, int), np.array([2.0]), np.array([1.0]))


def test_a_service_interval_does_not_end_before_it_starts():
    with pytest.raises(InvalidSample, match="end_seconds"):
        ServiceIntervals(np.zeros(1, int), np.array([5.0]), np.array([4.0]))


@pytest.mark.parametrize("time", [np.nan, np.inf])
def test_a_fault_has_a_finite_time(time):
    with pytest.raises(InvalidSample, match="time_seconds, row 0"):
        FaultEvents(np.zeros(1, int), np.array([time]), np.zeros(1, int), ("x",), ("minor",))


def test_a_fault_has_a_known_signature():
    with pytest.raises(UnitMismatch, match=r"signature must index 0 to 0: got 1 to 1"):
        FaultEvents(np.zeros(1, int), np.zeros(1), np.ones(1, int), ("x",), ("minor",))


@pytest.mark.parametrize(
    ("field", "value"), [("in_service_seconds", -1.0), ("throughput", -0.1), ("throughput", np.inf)]
)
def test_negative_and_infinite_reports_are_refused(field, value):
    good = worlds.reports([1.0], hours=1)

    with pytest.raises(InvalidSample, match=field):
        replace(good, **{field: np.array([value])})


def test_a_report_without_throughput_is_accepted():
    good = worlds.reports([1.0], hours=1)

    assert np.isnan(replace(good, throughput=np.array([np.nan])).throughput[0])


def test_a_negative_recovery_is_refused():
    with pytest.raises(InvalidSample, match="recovery_seconds"):
        RecoveryRows(
            np.zeros(1, int),
            np.zeros(1),
            np.ones(1),
            np.array([-5.0]),
            np.zeros(1),
            np.zeros(1, int),
            ("continued",),
        )


def test_attempts_come_in_order_of_time():
    with pytest.raises(InvalidSample, match="order of time"):
        AttemptRows(np.zeros(2, int), np.array([2.0, 1.0]), np.zeros(2, int), ("succeeded",))


def test_tables_index_the_machines_of_the_sample():
    with pytest.raises(UnitMismatch, match=r"machine must index 0 to 1: got 2 to 2"):
        worlds.world(1, 1, hours=1, faults=worlds.faults([(2, 0.5)]))


def test_observations_keep_their_workloads():
    rows = worlds.reports([1.0], hours=2)

    with pytest.raises(UnitMismatch, match="workload"):
        ObservationRows(
            rows.machine,
            rows.start_seconds,
            rows.end_seconds,
            rows.in_service_seconds,
            rows.throughput,
            np.ones(2, int),
            ("train",),
        )


def test_a_window_has_a_length():
    sample = worlds.world(1, 1, hours=1)

    with pytest.raises(InvalidSample, match="window_seconds"):
        replace(sample, window_seconds=0.0)


def test_a_policy_needs_a_guardrail():
    with pytest.raises(NoGuardrails):
        Policy(guardrails=(), weights=worlds.WEIGHTS)


def test_guardrail_names_are_unique():
    with pytest.raises(InvalidPolicy, match="faults twice"):
        worlds.policy(worlds.FAULTS, worlds.FAULTS)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_levels_lie_between_zero_and_one(alpha):
    with pytest.raises(InvalidPolicy, match="alpha"):
        worlds.policy(worlds.FAULTS, alpha=alpha)


def test_a_margin_below_the_tolerance_is_refused():
    with pytest.raises(InvalidPolicy, match="below the tolerance"):
        Guardrail("t", Metric.THROUGHPUT, True, True, margin=0.01, tolerance=0.02)


def test_a_ratio_margin_below_one_is_refused():
    with pytest.raises(InvalidPolicy, match="a ratio of at least 1"):
        Guardrail("f", Metric.FAULTS, True, True, margin=0.5, tolerance=1.0)
