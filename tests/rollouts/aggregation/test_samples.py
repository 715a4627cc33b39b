"""All that a judge is given of one wave."""

import pytest

from fleet.models import Fault, FaultSignature, Observation, Recovery
from rollouts import policies
from rollouts.aggregation import samples_for
from rollouts.analysis import judge
from rollouts.analysis.errors import UnitMismatch
from rollouts.analysis.wave import Look, WavePlan
from rollouts.models import Wave
from tests.rollouts.aggregation.world import (
    AS_OF,
    CLOCK,
    START,
    fail,
    hours,
    machines,
    make_wave,
    observe,
)

pytestmark = pytest.mark.django_db


def fill(number: int) -> Wave:
    listed = machines(*[f"n{number}-{index:05}" for index in range(number)])
    wave = make_wave(listed[: number // 5], listed[number // 5 :])
    signature, _ = FaultSignature.objects.get_or_create(name="xid.48", defaults={"kind": "hard"})
    Observation.objects.bulk_create(
        Observation(
            machine=machine,
            start=end - hours(1),
            end=end,
            in_service_seconds=3600.0,
            throughput=1.0,
            source="fill",
            source_key=f"{machine.name}-{end}",
            received_at=end,
        )
        for machine in listed
        for end in (START - hours(1), CLOCK + hours(1), CLOCK + hours(2))
    )
    Fault.objects.bulk_create(
        Fault(
            machine=machine,
            time=CLOCK + hours(1),
            signature=signature,
            severity="major",
            source="fill",
            source_key=machine.name,
            received_at=CLOCK + hours(1),
        )
        for machine in listed
    )
    Recovery.objects.bulk_create(
        Recovery(
            machine=machine,
            time=CLOCK + hours(1),
            source="fill",
            source_key=machine.name,
            received_at=CLOCK + hours(1),
        )
        for machine in listed
    )
    return wave


@pytest.mark.parametrize("number", [5, 400])
def test_the_number_of_statements_does_not_grow_with_the_machines(
    number, django_assert_num_queries
):
    wave = Wave.objects.select_related("rollout").get(pk=fill(number).pk)

    with django_assert_num_queries(19):
        samples = samples_for(wave, as_of=AS_OF)

    assert len(samples.machines.name) == number
    assert samples.observations.machine.size == 2 * number
    assert samples.faults.machine.size == samples.recoveries.machine.size == number


def test_the_judge_holds_while_a_block_has_not_begun_and_counts_only_the_one_that_has():
    listed = machines(*[f"n{index:02}" for index in range(40)])
    blocks = {machine.name: 1 + index % 2 for index, machine in enumerate(listed)}
    wave = make_wave(listed[:8], listed[8:], clocks=[CLOCK, None], blocks=blocks)
    for machine in listed:
        for hour in range(1, 7):
            observe(machine, end=CLOCK + hours(hour))
    fail(listed[0], at=CLOCK + hours(1))
    fail(listed[1], at=CLOCK + hours(1))
    policy = policies.policy_from(
        {"guardrails": [{"metric": "faults"}, {"metric": "throughput"}], "resamples": 199}
    )
    samples = samples_for(wave, as_of=AS_OF)
    look = Look(number=1, as_of_seconds=samples.as_of_seconds, elapsed=0.25)
    plan = WavePlan(window_seconds=samples.window_seconds, alpha=0.05)

    (outcome,), _ = judge.evaluate(
        samples, policy, plan, looks=[look], state=judge.initial_state(samples, policy)
    )

    faults = next(g for g in outcome.guardrails if g.name == "faults")
    assert outcome.recommendation.kind == "hold"
    assert (faults.canary.machines, faults.canary.events) == (4, 1)
    assert faults.control.machines == 16


def test_units_that_the_assignment_did_not_draw_are_refused():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    pairs = {"c1": "a", "c2": "a", "k1": "b", "k2": "b"}
    wave = make_wave(canaries, controls, units=pairs)
    samples = samples_for(wave, as_of=AS_OF)
    policy = policies.policy_from(
        {"guardrails": [{"metric": "throughput"}]}, kind=policies.Kind.PLAN
    )

    with pytest.raises(UnitMismatch, match=r"'group of machines' .* 'machine'"):
        judge.initial_state(samples, policy)
