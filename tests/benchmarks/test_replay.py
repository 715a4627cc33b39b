"""Judging a wave once at its end gives what was decided live, look by look."""

from dataclasses import fields, replace

import numpy as np
import pytest

from benchmarks.cells import Cell
from benchmarks.judges import looks_of, plan_of, policy_for
from benchmarks.waves import draw_wave
from rollouts.analysis import judge

CELLS = (
    Cell(policy="engine", size="8+32", rate=1.0, ratio=2.0),
    Cell(policy="engine", size="8+32", rate=1.0, dropouts="canary"),
    Cell(policy="engine", size="8+32", rate=1.0, exposure="uneven", removal=True),
)


def kept(table, keep, **changes):
    columns = {
        field.name: value[keep]
        if isinstance(value := getattr(table, field.name), np.ndarray) and value.shape == keep.shape
        else value
        for field in fields(table)
    }
    return type(table)(**{**columns, **changes})


def known_by(samples, cutoff):
    """The samples as they stood at a cutoff: nothing later, recoveries still open."""
    recoveries = kept(samples.recoveries, samples.recoveries.time_seconds <= cutoff)
    is_open = recoveries.recovered_seconds > cutoff
    later_unknown = {
        name: np.where(is_open, np.nan, getattr(recoveries, name))
        for name in ("recovered_seconds", "recovery_seconds", "repeated_seconds")
    }
    service = samples.service
    if service is not None:
        service = kept(service, service.start_seconds <= cutoff)
        end = np.where(service.end_seconds > cutoff, np.inf, service.end_seconds)
        service = replace(service, end_seconds=end)
    return replace(
        samples,
        as_of_seconds=cutoff,
        service=service,
        faults=kept(samples.faults, samples.faults.time_seconds <= cutoff),
        observations=kept(samples.observations, samples.observations.end_seconds <= cutoff),
        recoveries=replace(recoveries, **later_unknown),
    )


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_look_decides_the_same_with_and_without_what_comes_later(cell):
    wave = draw_wave(cell, 0)
    policy = policy_for(cell, resamples=199, seed=5)
    plan, looks = plan_of(wave, policy), looks_of(cell)[5::6]
    start = judge.initial_state(wave.samples, policy)

    replayed, _ = judge.evaluate(wave.samples, policy, plan, looks=looks, state=start)
    state, live = start, []
    for look in looks:
        samples = known_by(wave.samples, look.as_of_seconds)
        found, state = judge.evaluate(samples, policy, plan, looks=[look], state=state)
        live += found

    assert [e.recommendation for e in live] == [e.recommendation for e in replayed]
    assert [[g.verdict for g in e.guardrails] for e in live] == [
        [g.verdict for g in e.guardrails] for e in replayed
    ]


def test_two_runs_give_the_same_integers():
    wave = draw_wave(CELLS[0], 1)
    policy = policy_for(wave.cell, resamples=199, seed=5)
    looks = looks_of(wave.cell)[11::12]
    start = judge.initial_state(wave.samples, policy)

    first, after = judge.evaluate(
        wave.samples, policy, plan_of(wave, policy), looks=looks, state=start
    )
    second, again = judge.evaluate(
        wave.samples, policy, plan_of(wave, policy), looks=looks, state=start
    )

    assert [e.scores for e in first] == [e.scores for e in second]
    assert after.to_dict() == again.to_dict()
