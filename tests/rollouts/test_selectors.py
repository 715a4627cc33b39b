"""Reads of a rollout: its pauses, its turning points, what it cost."""

from datetime import timedelta

import pytest

from fleet import services as fleet
from fleet.lifecycle import Trigger
from rollouts import pipeline, selectors, services
from rollouts.models import Rollout, Wave
from tests.factories import NOW
from tests.rollouts import rows
from tests.rollouts.test_api import client_of

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def test_only_pauses_that_are_over_are_cut_out():
    rollout = rows.running()

    services.pause(rollout, actor=rollout.author, now=NOW + HOUR)
    services.resume(rollout, actor=rollout.author, now=NOW + 3 * HOUR)
    services.pause(rollout, actor=rollout.author, now=NOW + 5 * HOUR)

    assert selectors.pauses(rollout) == [(NOW + HOUR, NOW + 3 * HOUR)]


def test_looks_that_say_the_same_are_one_turning_point():
    rollout = rows.running()
    wave = rollout.waves.get(number=1)
    for number, code in enumerate(["evidence_open", "evidence_open", "review", "review"], start=1):
        rows.look(wave, number, code=code)

    points = selectors.turning_points(rollout)

    assert [point.reason_code for point in points] == ["evidence_open", "review"]


def test_a_timeline_ends_with_what_came_first():
    rollout = rows.running()
    rows.look(rollout.waves.get(number=1), kind="halt", code="harmful")

    events = selectors.timeline(rollout)

    assert [event["at"] for event in events] == sorted((e["at"] for e in events), reverse=True)
    assert events[0]["what"] == "halt (harmful)"
    assert {event["kind"] for event in events} == {"order", "move", "decision"}


def begun() -> Rollout:
    """A running rollout whose four canaries are being drained."""
    rollout = rows.running()
    pipeline.enact(rollout, now=NOW)
    assert rollout.attempts.filter(status="draining").count() == 4
    return rollout


def test_machine_hours_are_lost_from_the_drain_to_the_return():
    rollout = begun()
    first, second = (attempt.machine for attempt in rollout.attempts.order_by("pk")[:2])
    for machine, hours in ((first, 1), (second, 2)):
        fleet.move_machine(
            machine, Trigger.CALL_OFF, actor="tests", now=NOW + hours * HOUR, gate="untouched"
        )

    lost = selectors.lost_machine_hours(rollout, until=NOW + 3 * HOUR)

    assert lost == pytest.approx(1 + 2 + 3 + 3)


def test_hours_out_of_service_for_other_reasons_are_not_the_rollouts():
    rollout = begun()
    machine = rollout.attempts.order_by("pk")[0].machine
    fleet.move_machine(machine, Trigger.CALL_OFF, actor="x", now=NOW + HOUR, gate="untouched")
    fleet.move_machine(machine, Trigger.DRAIN, actor="ann", now=NOW + 2 * HOUR)

    lost = selectors.lost_machine_hours(rollout, until=NOW + 3 * HOUR)

    assert lost == pytest.approx(1 + 3 * 3)


def test_a_machine_that_was_only_drained_was_never_exposed():
    rollout = begun()
    first, second, third, _ = rollout.attempts.order_by("pk")
    rollout.attempts.filter(pk=first.pk).update(status="succeeded")
    rollout.attempts.filter(pk=second.pk).update(status="failed")
    rollout.attempts.filter(pk=third.pk).update(status="called_off")

    assert selectors.machines_exposed(rollout) == 2


def test_a_scaled_clock_steps_by_the_shortest_interval_between_looks():
    assert selectors.longest_step() == HOUR

    rollout = rows.running()
    rollout.plan["look_minutes"] = 15
    rollout.save()

    assert selectors.longest_step() == timedelta(minutes=15)


def test_arms_are_counted_by_wave():
    rollout = begun()

    assert selectors.arm_sizes(rollout) == {1: {"canary": 4, "control": 16}}


# --- all waves together ----------------------------------------------------------------------


def three_waves(**details: list[dict[str, object] | None]) -> Rollout:
    """A rollout of whose waves each has one look; per guardrail, the details of each look."""
    rollout = rows.draft(name="three", machines=60)
    waves = [
        Wave.objects.create(
            rollout=rollout,
            number=number,
            size=4,
            window_hours=24.0 * number,
            forecast={"canaries": 4 * number, "controls": 36},
        )
        for number in (1, 2, 3)
    ]
    for place, wave in enumerate(waves):
        seen = [
            rows.seen(name, name, details=given[place] or {}) for name, given in details.items()
        ]
        rows.look(wave, kind="widen", code="not_worse", guardrails=seen)
    return rollout


def test_differences_of_earlier_waves_are_those_of_telemetry_alone():
    kept = {"difference": {"estimate": 0.01, "error": 0.02}}
    rollout = three_waves(telemetry=[kept, None, kept], severe_path=[kept, kept, kept])

    third = rollout.waves.get(number=3)

    assert selectors.earlier_differences(third) == {"telemetry": ((0.01, 0.02),)}
    assert selectors.earlier_differences(rollout.waves.get(number=1)) == {}


def test_all_waves_weigh_by_what_was_planned_for_them():
    rollout = three_waves(
        faults=[{"harm_z": 1.0}, {"harm_z": 2.0}, {"harm_z": None}],
        throughput=[{"harm_z": 1.0}, {}, {}],
    )

    (row,) = selectors.pooled_evidence(
        [(wave, wave.evaluations.get()) for wave in selectors.waves_of(rollout)]
    )

    first, second = 4 * 36 / 40 * 24, 8 * 36 / 44 * 48
    assert row["name"] == "faults"
    assert row["z"] == pytest.approx(
        (first**0.5 * 1.0 + second**0.5 * 2.0) / (first + second) ** 0.5
    )
    assert [part["wave"] for part in row["waves"]] == [1, 2]


def test_the_api_tells_the_pooled_evidence_beside_the_verdicts():
    rollout = three_waves(faults=[{"harm_z": 1.0}, {"harm_z": 2.0}, {"harm_z": None}])

    (row,) = client_of("viewer").get(f"/api/v1/rollouts/{rollout.pk}/pooled").json()

    assert row["name"] == "faults"
    assert row["z"] > 2.0
    assert [(part["wave"], part["z"]) for part in row["waves"]] == [(1, 1.0), (2, 2.0)]
