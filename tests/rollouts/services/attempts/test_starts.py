"""Who starts when: windows and freezes, full domains, machines that activate as one, the pace."""

from collections import Counter
from datetime import timedelta

import pytest

from fleet import services as fleet
from fleet.models import FirmwareImage, Machine
from rollouts import headroom, services
from rollouts.errors import PlanRefused
from rollouts.explain import explain
from rollouts.lifecycle import IN_FLIGHT
from rollouts.models import Attempt, Rollout
from rollouts.services.attempts import starts
from tests.factories import (
    NOW,
    make_bundle,
    make_firmware_record,
    make_image,
    make_machines,
    make_user,
)
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.pages import client_of
from tests.rollouts.plans import NEW, OLD, started

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
#: NOW is noon, UTC, on a Monday.
EVENING = {"start": "22:00", "duration_minutes": 240}


def statuses(rollout: Rollout) -> Counter[str]:
    return Counter(rollout.attempts.values_list("status", flat=True))


def in_flight(rollout: Rollout) -> int:
    return rollout.attempts.filter(status__in=IN_FLIGHT).count()


def test_outside_its_window_an_attempt_is_deferred_with_its_forecast_and_starts_in_it(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, windows=[EVENING])
    driver.settle()
    opening = NOW + 10 * HOUR

    waiting = rollout.attempts.filter(status="deferred", forecast_at=opening)
    assert waiting.count() == 8
    assert waiting.first().detail == (
        "outside its maintenance windows; it may start 2026-03-02 22:00 UTC"
    )

    rollout.refresh_from_db()
    said = [condition.present for condition in explain(rollout)]
    assert f"8 attempts wait: {waiting.first().detail}" in said

    driver.run(rollout, hours=10)

    assert set(rollout.attempts.values_list("started_at", flat=True)) == {opening}
    assert not rollout.attempts.exclude(forecast_at=None).exists()


def test_nothing_starts_that_could_not_end_before_the_window_closes(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    # An attempt may take 60 + 2 × 30 min; of the window's four hours 119 min are left.
    driver.now = NOW + timedelta(hours=12, minutes=1)
    rollout = started(fake_fleet, windows=[EVENING])
    driver.settle()

    assert statuses(rollout) == {"deferred": 8}
    assert rollout.attempts.first().forecast_at == NOW + 34 * HOUR


def test_only_the_pools_whose_window_is_open_start(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(
        fake_fleet,
        windows=[
            {"start": "00:00", "duration_minutes": 1440, "pools": ["train"]},
            {**EVENING, "pools": ["serve"]},
        ],
    )
    planned = rollout.assignments.filter(planned_wave=1).values_list("machine", flat=True)
    Machine.objects.filter(pk__in=planned[:3]).update(pool="train")
    Machine.objects.filter(pk__in=planned[3:6]).update(pool="serve")

    driver.settle()

    by_pool = {
        pool: set(rollout.attempts.filter(machine__pool=pool).values_list("status", flat=True))
        for pool in ("train", "serve", "")
    }
    assert by_pool["serve"] == by_pool[""] == {"deferred"}
    assert by_pool["train"].isdisjoint({"queued", "deferred"})
    nowhere = rollout.attempts.filter(machine__pool="").first()
    assert nowhere.forecast_at is None
    assert nowhere.detail == (
        "blocked: no maintenance window of the plan is for machines without pool and site"
    )


def test_a_freeze_holds_every_rollout_until_it_is_lifted(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    freeze = services.set_freeze(
        start=NOW, end=NOW + 100 * HOUR, reason="peak", author=make_user(), now=NOW
    )
    rollout = started(fake_fleet)
    driver.run(rollout, hours=20)
    assert statuses(rollout) == {"deferred": 8}
    assert rollout.attempts.first().detail.startswith("frozen until 2026-03-06 16:00 UTC: peak")

    services.lift_freeze(freeze, actor=make_user(), now=driver.now)
    driver.settle()

    assert statuses(rollout)["deferred"] == 0


def test_a_freeze_does_not_hold_up_a_roll_back(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = started(fake_fleet, on_halt={"succeeded": "roll_back"})
    driver.run(rollout, hours=3)
    services.set_freeze(
        start=driver.now, end=driver.now + 500 * HOUR, reason="peak", author=make_user(), now=NOW
    )

    services.halt(rollout, actor=make_user(), reason="slow", now=driver.now)
    driver.run(rollout, until="rolled_back", hours=12)

    assert rollout.status == "rolled_back"


def test_a_machine_that_was_drained_too_late_for_its_window_is_given_back_untouched(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, windows=[EVENING])
    names = list(rollout.assignments.filter(planned_wave=1).values_list("machine_name", flat=True))
    fake_fleet.behaviour[names[0]] = "busy"
    driver.run(rollout, hours=12.5)
    fake_fleet.behaviour[names[0]] = "ok"
    driver.run(rollout, hours=1)

    late = rollout.attempts.get(machine__name=names[0])
    assert names[0] not in fake_fleet.flashed
    assert (late.status, late.forecast_at) == ("deferred", NOW + 34 * HOUR)
    assert Machine.objects.get(name=names[0]).state == "in_service"

    driver.run(rollout, hours=24)

    late.refresh_from_db()
    assert late.status == "succeeded"


def test_machines_drained_ahead_of_their_window_are_written_to_when_it_opens(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, windows=[EVENING], drain_ahead_minutes=90)
    driver.run(rollout, hours=9.9)
    assert statuses(rollout) == {"draining": 8}
    assert set(rollout.attempts.values_list("started_at", flat=True)) == {NOW + 8.5 * HOUR}
    assert not fake_fleet.flashed

    driver.run(rollout, hours=1)

    assert statuses(rollout) == {"succeeded": 8}


def test_machines_behind_a_full_rack_are_found_however_long_the_queue(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headroom, "MOST_AT_ONCE", 2)
    rollout = started(fake_fleet, caps={"per_rack": 1, "max_unavailable_share": None})
    places = rollout.assignments.filter(planned_wave=1).order_by("stratum", "position")
    order = list(places.values_list("machine", flat=True))
    Machine.objects.filter(pk__in=order[:7]).update(rack="r1")
    Machine.objects.filter(pk__in=order[7:]).update(rack="r2")

    driver.settle()

    flying = rollout.attempts.filter(status__in=IN_FLIGHT).values_list("machine__rack", flat=True)
    assert Counter(flying) == {"r1": 1, "r2": 1}


def test_a_machine_in_repair_takes_the_place_of_one_in_flight(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet, caps={"per_rack": 2, "max_unavailable_share": None})
    Machine.objects.update(rack="r1")
    idle = rollout.assignments.filter(planned_wave=2).first().machine
    Machine.objects.filter(pk=idle.pk).update(state="repairing", may_take_work=False)

    driver.settle()

    assert in_flight(rollout) == 1


# --- machines that activate as one -----------------------------------------------------------


def in_racks(fake_fleet: FakeFleet, **changes: object) -> Rollout:
    """A running rollout whose bundle activates whole racks, over ten racks of four machines."""
    return started(
        fake_fleet,
        per_rack=4,
        bundle=make_bundle(
            images=[make_image("bmc", NEW, activation_domain=FirmwareImage.Domain.RACK)]
        ),
        **{
            "unit": "rack",
            "waves": [{"count": 2, "window_hours": 48}],
            "guardrails": [{"metric": "install", "halt": False}],
            **changes,
        },
    )


def test_a_plan_that_would_divide_a_rack_that_activates_as_one_is_refused(
    fake_fleet: FakeFleet,
) -> None:
    with pytest.raises(PlanRefused, match="unit machine divides rack r0, rack r1"):
        in_racks(fake_fleet, unit="machine", waves=[{"count": 8, "window_hours": 48}])


def racks_in_flight(rollout: Rollout) -> Counter[str]:
    flying = rollout.attempts.filter(status__in=IN_FLIGHT)
    return Counter(flying.values_list("machine__rack", flat=True))


def test_a_rack_that_activates_as_one_starts_as_one(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_racks(fake_fleet, caps={"max_in_flight": 6, "max_unavailable_share": None})

    driver.settle()

    assert list(racks_in_flight(rollout).values()) == [4]


def test_a_machine_that_is_not_in_the_batch_blocks_its_rack_by_name(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_racks(fake_fleet)
    first, second = sorted(
        set(rollout.assignments.filter(planned_wave=1).values_list("unit", flat=True))
    )
    held = Machine.objects.filter(rack=first).first()
    fleet.cordon(held, owner="ann", reason="waits for its vendor", now=NOW)

    driver.settle()
    block = rollout.attempts.first().block
    ready = headroom.ready_attempts(block, epoch=0)

    assert set(racks_in_flight(rollout)) == {second}
    assert set(headroom.startable(block, ready).waiting.values()) == {
        f"rack {first} activates as one and holds {held.name}, which ann has cordoned"
    }


def with_one_on_target(fake_fleet: FakeFleet) -> tuple[Rollout, str, set[str]]:
    """A rollout over racks, a machine that runs the bundle already, and the others of its rack."""
    make_machines(40, names=[f"r{n:04}" for n in range(40)], versions={"bmc": OLD})
    for number, machine in enumerate(Machine.objects.order_by("name")):
        Machine.objects.filter(pk=machine.pk).update(rack=f"r{number // 4}")
    for rack in range(10):
        own = Machine.objects.get(name=f"r{rack * 4:04}")
        make_firmware_record(own, version=NEW, since=NOW + timedelta(seconds=1))
    names = [machine.name for machine in Machine.objects.order_by("name")]
    fake_fleet.add(names, bmc=OLD)
    for name in names[::4]:
        fake_fleet.versions[name]["bmc"] = NEW
    rollout = in_racks(fake_fleet, machines=0)
    rack = rollout.assignments.filter(planned_wave=1).first().machine.rack
    members = set(Machine.objects.filter(rack=rack).values_list("name", flat=True))
    ahead = min(members)
    return rollout, ahead, members - {ahead}


def test_a_machine_that_runs_the_bundle_already_is_drained_with_its_rack_and_given_back_untouched(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, ahead, others = with_one_on_target(fake_fleet)
    assert not rollout.assignments.filter(machine_name=ahead).exists()

    driver.run(rollout, hours=6)

    assert others <= set(fake_fleet.flashed)
    assert ahead not in fake_fleet.flashed
    along = rollout.attempts.get(machine__name=ahead)
    assert (along.status, along.detail) == (
        "called_off",
        "it runs the intended versions already",
    )
    done = rollout.attempts.filter(machine__name__in=others)
    assert set(done.values_list("status", flat=True)) == {"succeeded"}
    assert along.finished_at >= max(done.values_list("finished_at", flat=True))
    assert Machine.objects.get(name=ahead).state == "in_service"
    assert ahead not in fake_fleet.drained


def test_a_preview_says_who_is_drained_along_and_which_racks_cannot_start(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, *_ = with_one_on_target(fake_fleet)
    racks = dict(Machine.objects.values_list("name", "rack"))
    foreign = rollout.assignments.filter(planned_wave=2).first().machine
    fleet.cordon(foreign, owner="ann", reason="waits for its vendor", now=NOW)

    services.cancel(rollout, actor=make_user(), now=NOW)
    again = services.create_draft(
        name="again",
        bundle=rollout.bundle,
        selector=rollout.selector,
        document={key: rollout.plan[key] for key in ("unit", "waves", "guardrails", "strata")},
        author=make_user(),
        now=NOW,
    )
    seen = services.preview(again, now=NOW).summary["neighbours"]

    assert (seen["field"], seen["along"]["count"]) == ("rack", 10)
    assert seen["blocked"] == [{"domain": racks[foreign.name], "machines": foreign.name}]
    page = client_of("operator").get(f"/rollouts/{again.pk}/plan").content.decode()
    assert "run the bundle already: drained with the others" in page


def test_a_machine_that_is_drained_with_its_rack_stays_so_through_a_halt_until_the_rack_is_done(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout, ahead, others = with_one_on_target(fake_fleet)
    flying = rollout.attempts.filter(machine__name__in=others, status="verifying")
    for _ in range(6):
        if not flying.exists():
            driver.run(rollout, hours=1 / 60)
    assert flying.exists()

    services.halt(rollout, actor=make_user(), reason="smoke", now=driver.now)
    driver.run(rollout, hours=1 / 60)
    assert flying.exists()
    assert Machine.objects.get(name=ahead).state == "draining"

    driver.run(rollout, hours=3)
    assert Machine.objects.get(name=ahead).state == "in_service"


def test_no_machine_of_a_rack_is_written_to_before_all_of_them_are_drained(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_racks(fake_fleet)
    busy = rollout.assignments.filter(planned_wave=1).order_by("machine_name").first()
    fake_fleet.behaviour[busy.machine_name] = "busy"
    driver.run(rollout, hours=3)
    rack = set(Machine.objects.filter(rack=busy.machine.rack).values_list("name", flat=True))
    assert not rack & set(fake_fleet.flashed)

    fake_fleet.behaviour[busy.machine_name] = "ok"
    driver.run(rollout, hours=3)

    assert rack <= set(fake_fleet.flashed)


def test_where_one_of_a_rack_was_taken_none_of_it_starts(
    fake_fleet: FakeFleet, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = in_racks(fake_fleet)
    picks = headroom.pick

    def taken_meanwhile(*args: object, **options: object) -> list[Attempt]:
        picked = picks(*args, **options)
        taken = [attempt.machine_id for attempt in picked[1:2]]
        Machine.objects.filter(pk__in=taken).update(state="updating", may_take_work=False)
        return picked

    monkeypatch.setattr(starts.headroom, "pick", taken_meanwhile)
    driver.settle()

    assert rollout.attempts.filter(started_at__isnull=False).count() % 4 == 0


# --- pace ------------------------------------------------------------------------------------


def test_in_a_smoke_wave_never_more_are_in_flight_than_may_still_fail_and_one(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        waves=[{"count": 8, "window_hours": 48, "allows_smoke": True}],
        guardrails=[{"metric": "install", "halt": False}],
    )
    names = list(rollout.assignments.filter(planned_wave=1).values_list("machine_name", flat=True))
    fake_fleet.behaviour[names[0]] = "reject"
    most = 0
    while statuses(rollout)["succeeded"] + statuses(rollout)["rejected"] < 8:
        driver.run(rollout, hours=0.05)
        failed = statuses(rollout)["rejected"]
        assert in_flight(rollout) <= 2 - failed + 1
        most = max(most, in_flight(rollout))
        driver.now += timedelta(minutes=1)

    assert most in (2, 3)


def test_a_later_wave_speeds_up_with_every_install_that_goes_well(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(
        fake_fleet,
        machines=60,
        waves=[{"count": 30, "window_hours": 48}],
        guardrails=[{"metric": "install", "halt": False}],
        caps={"max_unavailable_share": None, "paced": True},
    )
    driver.run(rollout, hours=6)

    batches = Counter(rollout.attempts.values_list("started_at", flat=True))
    sizes = [number for _, number in sorted(batches.items())]
    # Two may fail; 2 over the upper bound 1 - .05^(1/n) after n = 2, 4, 7 good ones is 2, 3, 5.
    # After the first ten no stop on early failures is left, and nothing else was asked for.
    assert sizes == [2, 2, 3, 5, 18]
