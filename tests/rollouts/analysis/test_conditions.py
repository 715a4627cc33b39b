"""Workload conditions: who ran what is counted per arm; harm does not wait for it."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from rollouts.analysis.conditions import condition_at
from rollouts.analysis.errors import InvalidPolicy
from rollouts.analysis.judge import evaluate, initial_state
from rollouts.analysis.policy import Guardrail, Metric, Policy, WorkloadCondition
from rollouts.analysis.samples import (
    AttemptRows,
    FaultEvents,
    Machines,
    ObservationRows,
    Samples,
    Units,
)
from rollouts.analysis.wave import Look, WavePlan

HOUR, DAY = 3_600.0, 86_400.0
CANARIES, SIZE = 8, 32
NAMES = tuple(f"m{number:02}" for number in range(SIZE))


def ran(
    hours: dict[int, float], *, workload: str = "pretraining", start: float = 0.0
) -> ObservationRows:
    """One report per machine that began at `start` and served so many hours on the workload."""
    seconds = np.array(list(hours.values())) * HOUR
    return ObservationRows(
        machine=np.array(list(hours), dtype=np.int64),
        start_seconds=np.full(len(hours), start),
        end_seconds=start + seconds,
        in_service_seconds=seconds,
        throughput=np.linspace(0.99, 1.01, len(hours)),
        workload=np.zeros(len(hours), dtype=np.int64),
        workloads=(workload,),
    )


def samples(observations: ObservationRows | None, **changes: object) -> Samples:
    everyone = np.arange(SIZE)
    return replace(
        Samples(
            origin=datetime(2026, 1, 1, tzinfo=UTC),
            as_of_seconds=DAY,
            window_seconds=DAY,
            units=Units(NAMES, everyone < CANARIES, np.zeros(SIZE, int), np.zeros(SIZE)),
            machines=Machines(NAMES, everyone, np.zeros(SIZE), np.full(SIZE, np.inf)),
            observations=observations,
        ),
        **changes,
    )


def test_of_each_arm_the_larger_of_number_and_share_is_needed():
    # Half of 8 canaries are 4, but 5 are asked for; half of 24 controls are 12.
    condition = WorkloadCondition(("pretraining",), least_canaries=5, least_controls=5)
    machines = [*range(4), *range(CANARIES, CANARIES + 11)]

    few = condition_at(condition, samples(ran(dict.fromkeys(machines, 2.0))), cutoff=DAY)
    more = [*machines, 4, CANARIES + 11]
    enough = condition_at(condition, samples(ran(dict.fromkeys(more, 2.0))), cutoff=DAY)

    assert few.words == (
        "workload condition not met: 4 of 5 canaries ran pretraining and "
        "11 of 12 controls ran pretraining"
    )
    assert enough.is_met


def test_an_arm_smaller_than_asked_for_needs_all_of_it_and_no_more():
    condition = WorkloadCondition(("pretraining",), least_canaries=50, least_controls=0)

    found = condition_at(condition, samples(ran(dict.fromkeys(range(SIZE), 2.0))), cutoff=DAY)

    assert found.is_met
    assert "8 of 8 canaries" in found.words


@pytest.mark.parametrize(
    "observations",
    [
        None,
        ran({}),
        ran(dict.fromkeys(range(SIZE), 0.9)),
        ran(dict.fromkeys(range(SIZE), 2.0), workload="inference"),
        ran(dict.fromkeys(range(SIZE), 2.0), start=-HOUR),
        ran(dict.fromkeys(range(SIZE), 2.0), start=DAY),
        ran(dict.fromkeys(range(SIZE), 0.0)),
    ],
    ids=["uncollected", "silent", "short", "other", "before the clock", "later", "no service"],
)
def test_what_did_not_run_long_enough_in_the_window_does_not_count(observations):
    condition = WorkloadCondition(("pretraining",))

    found = condition_at(condition, samples(observations), cutoff=DAY)

    assert not found.is_met
    assert "0 of 4 canaries ran pretraining" in found.words


def test_any_of_the_named_workloads_counts_and_so_do_several_short_reports():
    rows = ran({**dict.fromkeys(range(SIZE), 0.6)})
    twice = ObservationRows(
        machine=np.tile(rows.machine, 2),
        start_seconds=np.concatenate([rows.start_seconds, rows.end_seconds]),
        end_seconds=np.concatenate([rows.end_seconds, 2 * rows.end_seconds]),
        in_service_seconds=np.tile(rows.in_service_seconds, 2),
        throughput=np.tile(rows.throughput, 2),
        workload=np.repeat(np.array([0, 1]), SIZE),
        workloads=("pretraining", "rl"),
    )

    assert condition_at(WorkloadCondition(("rl", "pretraining")), samples(twice), cutoff=DAY).is_met
    assert not condition_at(WorkloadCondition(("rl",)), samples(twice), cutoff=DAY).is_met


def test_who_ran_it_does_not_depend_on_the_arms():
    condition = WorkloadCondition(("pretraining",), least_share=0.0, least_canaries=3)
    rows = ran({0: 2.0, 9: 2.0, 10: 2.0})
    flipped = samples(rows)
    flipped = replace(flipped, units=replace(flipped.units, is_canary=~flipped.units.is_canary))

    found = condition_at(condition, samples(rows), cutoff=DAY)
    other = condition_at(condition, flipped, cutoff=DAY)

    assert "1 of 3 canaries" in found.words
    assert "2 of 3 canaries" in other.words


# --- what the judge makes of it -----------------------------------------------------------------


def judged(observed: Samples, condition: WorkloadCondition | None, **look: float):
    guardrails = (
        Guardrail("install", Metric.INSTALL, True, True, margin=0.5, tolerance=0.1),
        Guardrail("faults", Metric.FAULTS, False, True, margin=2.0, tolerance=1.0),
    )
    policy = Policy(
        guardrails,
        weights={Metric.FAULTS: 0.5, Metric.INSTALL: 0.5},
        resamples=999,
        workload_conditions=() if condition is None else (condition,),
    )
    plan = WavePlan(window_seconds=DAY, alpha=0.05)
    (found,), _ = evaluate(
        observed,
        policy,
        plan,
        looks=[Look(1, DAY, **{"elapsed": 1.0, **look})],
        state=initial_state(observed, policy),
    )
    return found


def installed(observations: ObservationRows | None, **changes: object) -> Samples:
    attempts = AttemptRows(
        np.arange(CANARIES), np.zeros(CANARIES), np.zeros(CANARIES, int), ("succeeded",)
    )
    return samples(observations, attempts=attempts, install_baseline=0.01, **changes)


def test_a_proven_wave_whose_machines_ran_something_else_does_not_widen():
    condition = WorkloadCondition(("pretraining",), least_canaries=5)
    all_ran = installed(ran(dict.fromkeys(range(SIZE), 24.0)))
    few_ran = installed(ran(dict.fromkeys(range(3), 24.0)))

    assert judged(few_ran, None).recommendation.kind == "widen"
    assert judged(all_ran, condition).recommendation.kind == "widen"
    held = judged(few_ran, condition).recommendation

    assert held.kind == "hold"
    assert "workload condition not met: 3 of 5 canaries ran pretraining" in held.reason


def test_at_the_extensions_end_an_unmet_condition_leaves_the_wave_to_a_person():
    found = judged(installed(None), WorkloadCondition(("pretraining",)), extension_elapsed=1.0)

    assert found.recommendation.code == "inconclusive"
    assert not found.conditions[0].is_met


def test_harm_halts_whatever_ran():
    faults = FaultEvents(
        machine=np.repeat(np.arange(CANARIES), 3),
        time_seconds=np.tile(np.array([1.0, 5.0, 9.0]) * HOUR, CANARIES),
        signature=np.zeros(3 * CANARIES, int),
        signatures=("x",),
        severity=("",),
    )

    found = judged(installed(None, faults=faults), WorkloadCondition(("pretraining",)))

    assert found.recommendation.kind == "halt"


def test_a_condition_without_a_workload_is_refused():
    with pytest.raises(InvalidPolicy, match="at least one workload"):
        WorkloadCondition(())
