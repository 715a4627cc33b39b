"""Before a wave starts its arms are compared on the period before."""

from collections.abc import Collection
from datetime import timedelta

import pytest

from fleet import services as fleet_services
from fleet.models import Machine
from rollouts import selectors, services, tasks
from rollouts.explain import explain
from rollouts.models import Attempt, Rollout, Wave
from rollouts.replay import replay
from rollouts.services.evidence import draw_check, past
from tests.factories import (
    NOW,
    make_fault_report,
    make_machines,
    make_observation_report,
    make_recovery_report,
    make_user,
)
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import NEW, OLD, bundle_of, document

pytestmark = pytest.mark.django_db

GUARDRAILS = [
    {"metric": "install", "required": True},
    {"metric": "faults", "required": False},
    {"metric": "throughput", "required": False},
]


def approved(
    fake_fleet: FakeFleet,
    *,
    days: int = 10,
    slow: Collection[str] = (),
    silent: Collection[str] = (),
) -> Rollout:
    """An approved rollout over machines that reported once a day for so many days."""
    names = [f"r{number:04}" for number in range(60)]
    machines = make_machines(60, names=names, versions={"bmc": OLD})
    fake_fleet.add(names, bmc=OLD)
    ends = [NOW - timedelta(days=day, hours=1) for day in range(days)]
    reports = [
        make_observation_report(
            machine,
            start=end - timedelta(hours=1),
            end=end,
            throughput=(0.9 if machine.name in slow else 1.0) + 0.001 * (number % 7),
        )
        for number, machine in enumerate(machines)
        for end in (ends if machine.name not in silent else ends[::3])
    ]
    fleet_services.record(reports, source="test", key="past", now=NOW)
    author = make_user()
    rollout = services.create_draft(
        name="update",
        bundle=bundle_of("bmc"),
        selector="platform=dgx-h100",
        document=document(guardrails=GUARDRAILS, resamples=19_999),
        author=author,
        now=NOW,
        seed=7,
    )
    services.submit(rollout, actor=author, now=NOW)
    services.approve(rollout, actor=make_user(), now=NOW)
    return rollout


def with_canaries(rollout: Rollout, names: Collection[str]) -> None:
    """Somebody has chosen the canaries by hand."""
    rollout.assignments.filter(planned_wave=1).update(planned_wave=2)
    rollout.assignments.filter(machine_name__in=names).update(planned_wave=1)


def start(rollout: Rollout, driver: Driver) -> Wave:
    services.start(rollout, actor=make_user(), now=driver.now)
    driver.run(rollout, hours=2)
    return selectors.waves_of(rollout)[0]


SLOW = [f"r{number:04}" for number in range(8)]


def test_canaries_that_were_chosen_for_their_past_are_not_started(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = approved(fake_fleet, slow=SLOW)
    with_canaries(rollout, SLOW)

    wave = start(rollout, driver)

    assert wave.status == "pending"
    assert not Attempt.objects.exists()
    decision = rollout.decisions.get()
    assert (decision.kind, decision.reason_code) == ("hold", "blocked")
    assert decision.reason.startswith("broken randomisation: in the 9.1 days before")
    assert "differ from their control in throughput" in decision.reason


def test_a_refused_wave_says_what_it_waits_for_and_is_refused_once(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = approved(fake_fleet, slow=SLOW)
    with_canaries(rollout, SLOW)
    start(rollout, driver)

    for _ in range(3):
        tasks.evaluate(rollout.pk)

    assert rollout.decisions.count() == 1
    (condition,) = explain(rollout)
    assert condition.what == "start of wave 1"
    assert "broken randomisation" in condition.present


def test_a_refused_wave_can_be_skipped_by_two_people(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = approved(fake_fleet, slow=SLOW)
    with_canaries(rollout, SLOW)
    start(rollout, driver)

    services.skip_wave(
        rollout, actor=make_user(), second_person=make_user(), reason="known", now=driver.now
    )
    driver.run(rollout, hours=1)

    assert selectors.waves_of(rollout)[0].status == "skipped"
    assert selectors.waves_of(rollout)[1].status != "pending"


def test_a_sound_draw_starts_and_notes_what_it_saw(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = approved(fake_fleet, slow=SLOW)

    wave = start(rollout, driver)

    assert wave.status != "pending"
    assert wave.forecast["a_a_p"] > 0.001
    assert wave.forecast["a_a_check"].startswith("the arms' 9.1 days before were compared: p = ")


def test_a_short_past_is_no_check_and_the_forecast_says_so(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = approved(fake_fleet, days=3, slow=SLOW)
    said = selectors.waves_of(rollout)[0].forecast["a_a_check"]
    with_canaries(rollout, SLOW)

    wave = start(rollout, driver)

    assert said == "the draw is not checked: 2.1 days of reports before, 7 are needed"
    assert wave.forecast["a_a_check"] == said
    assert wave.status != "pending"


def test_faults_before_are_compared_by_machine_days(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = approved(fake_fleet)
    bad = Machine.objects.filter(name__in=SLOW)
    reports = [
        make_fault_report(machine, time=NOW - timedelta(days=day, minutes=number))
        for number, machine in enumerate(bad)
        for day in (1, 2, 3)
    ]
    fleet_services.record(reports, source="test", key="faults", now=NOW)
    with_canaries(rollout, SLOW)

    wave = start(rollout, driver)

    assert wave.status == "pending"
    assert "differ from their control in faults" in rollout.decisions.get().reason
    assert NEW not in {versions["bmc"] for versions in fake_fleet.versions.values()}


def test_canaries_that_report_less_or_recover_slower_are_not_started(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = approved(fake_fleet, silent=SLOW)
    reports = [
        make_recovery_report(
            machine,
            time=(at := NOW - timedelta(days=3, minutes=number)),
            recovered_at=at + timedelta(minutes=90 if machine.name in SLOW else 10),
            path="continued",
        )
        for number, machine in enumerate(Machine.objects.order_by("name"))
    ]
    fleet_services.record(reports, source="test", key="slow", now=NOW)
    with_canaries(rollout, SLOW)

    wave = start(rollout, driver)

    assert wave.status == "pending"
    (evaluation,) = rollout.evaluations.filter(kind="draw_check")
    broken = {seen["name"] for seen in evaluation.guardrails if seen["crossed"]}
    assert broken == {"telemetry", "recovery_time"}


def test_what_the_check_saw_is_kept_and_replays(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = approved(fake_fleet, slow=SLOW)
    with_canaries(rollout, SLOW)
    start(rollout, driver)

    (evaluation,) = rollout.evaluations.filter(kind="draw_check")

    assert rollout.decisions.get().evaluation == evaluation
    assert {seen["name"]: seen["crossed"] for seen in evaluation.guardrails} == {"throughput": True}
    assert replay(evaluation) == {"throughput": True}


def test_a_sound_draw_is_kept_too_and_is_no_look_of_the_wave(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = approved(fake_fleet, slow=SLOW)

    wave = start(rollout, driver)

    (evaluation,) = rollout.evaluations.filter(kind="draw_check")
    assert replay(evaluation) == {"throughput": False}
    assert evaluation.inputs["read_from"] == "read from reports"
    assert selectors.latest_evaluation(wave) != evaluation


def test_many_machines_without_summaries_are_not_checked_and_it_says_so(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = approved(fake_fleet, slow=SLOW)
    monkeypatch.setattr(past, "MOST_DIRECT", 20)
    monkeypatch.setattr(draw_check, "MOST_DIRECT", 20)

    wave = start(rollout, driver)

    assert wave.forecast["a_a_check"] == (
        "the draw is not checked: no summary of the telemetry of 60 machines yet"
    )
