"""After a wave's window its machines are watched against the untreated ones until the release."""

from datetime import timedelta
from itertools import pairwise

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from fleet import services as fleet_services
from fleet.models import Machine
from rollouts import selectors, services
from rollouts.analysis.surveillance import watch
from rollouts.models import Decision, Evaluation, Rollout
from rollouts.replay import replay
from rollouts.services.evidence import surveillance
from rollouts.services.evidence.cycles import unpack_scores
from rollouts.services.evidence.drawn import stored
from tests.factories import make_fault_report, make_user
from tests.rollouts.fakes import Driver, FakeFleet
from tests.rollouts.plans import started

pytestmark = pytest.mark.django_db

GUARDRAILS = [
    {"metric": "install", "required": True},
    {"metric": "faults", "required": False},
]


def in_the_second_wave(fake_fleet: FakeFleet, driver: Driver) -> Rollout:
    """A rollout half a day after its first wave, which proved nothing and was advanced by hand."""
    rollout = started(
        fake_fleet,
        machines=60,
        waves=[{"count": 20, "window_hours": 12}, {"count": 5, "window_hours": 72}],
        guardrails=GUARDRAILS,
        extension=0,
        min_exposure_hours=6,
    )
    driver.run(rollout, hours=18)
    ann, bob = make_user(), make_user()
    services.advance(rollout, actor=ann, second_person=bob, reason="calm", now=driver.now)
    driver.run(rollout, hours=12)
    first, second, _ = selectors.waves_of(rollout)
    assert (first.status, second.status) == ("widened", "observing")
    assert first.window_end < driver.now
    return rollout


def fail(rollout: Rollout, driver: Driver, *, number: int, wave: int | None) -> None:
    """Faults of the last hour on so many machines of a wave, or on untreated ones."""
    chosen = rollout.assignments.order_by("machine_name")
    chosen = chosen.filter(wave__number=wave) if wave else chosen.filter(wave=None)
    names = chosen.values_list("machine_name", flat=True)[:number]
    reports = [
        make_fault_report(machine, time=driver.now - timedelta(minutes=50 - k))
        for k, machine in enumerate(Machine.objects.filter(name__in=names))
    ]
    fleet_services.record(reports, source="test", key=f"{wave} {driver.now}", now=driver.now)


def halts(rollout: Rollout) -> list[Decision]:
    return list(rollout.decisions.filter(kind="halt"))


def test_machines_of_an_earlier_wave_that_fail_too_often_halt_the_rollout(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=12)

    assert rollout.status == "halted"
    (halt,) = halts(rollout)
    assert halt.reason_code == "harmful"
    assert halt.reason.startswith(
        "surveillance after the windows: 12 of 12 first episodes of faults were on units with "
        "the new bundle (20 of them, 35 untreated); E = "
    )
    assert halt.reason.endswith(", 100 halts")


def test_untreated_machines_that_fail_alike_are_no_reason_to_halt(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=7, wave=1)
    fail(rollout, driver, number=12, wave=None)

    driver.run(rollout, hours=12)

    assert rollout.status == "running"


def test_faults_before_the_end_of_the_window_are_not_counted_here(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    wave = selectors.waves_of(rollout)[0]
    later, driver.now = driver.now, wave.window_end
    fail(rollout, driver, number=12, wave=1)
    driver.now = later

    driver.run(rollout, hours=12)

    assert rollout.status == "running"


def test_one_crossing_is_one_decision(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    Rollout.objects.filter(pk=rollout.pk).update(mode="observe")
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=24)

    assert rollout.status == "running"  # in this mode nothing is carried out
    assert len(halts(rollout)) == 1


def test_what_was_overridden_does_not_halt_again(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=12, wave=1)
    driver.run(rollout, hours=12)
    ann, bob = make_user("ann"), make_user("bob")
    services.override(rollout, actor=ann, second_person=bob, reason="a power cut", now=driver.now)
    services.resume(rollout, actor=ann, now=driver.now)

    driver.run(rollout, hours=12)

    assert rollout.status == "running"
    assert len(halts(rollout)) == 1


def test_before_any_window_is_over_there_is_nothing_to_look_back_at(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = started(fake_fleet)
    driver.run(rollout, hours=12)

    wave = selectors.waves_of(rollout)[0]

    assert surveillance.look_back(wave, as_of=driver.now) is None


def looks(rollout: Rollout) -> list[Evaluation]:
    return list(rollout.evaluations.filter(kind="surveillance").order_by("as_of"))


def test_each_look_is_kept_on_the_plans_grid_with_its_evidence_and_replays(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=3, wave=1)
    fail(rollout, driver, number=1, wave=None)
    driver.run(rollout, hours=13)

    found = looks(rollout)

    steps = {later.as_of - earlier.as_of for earlier, later in pairwise(found)}
    assert max(steps) <= timedelta(hours=6, minutes=1)
    (seen,) = found[-1].guardrails
    assert (seen["canary"]["events"], seen["control"]["events"]) == (3, 1)
    assert not seen["crossed"]
    assert seen["details"]["needed"] == 100
    assert seen["details"]["log_e"] > 0
    assert [replay(one) for one in found] == [{"faults": False}] * len(found)


def test_what_halts_is_the_decision_of_its_own_evaluation_and_replays(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=12)

    (halt,) = halts(rollout)
    assert halt.evaluation == looks(rollout)[-1]
    assert replay(halt.evaluation) == {"faults": True}


def test_a_halt_replays_after_later_waves_were_treated(
    fake_fleet: FakeFleet, driver: Driver
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=2, wave=1)
    driver.run(rollout, hours=7)
    evaluation = looks(rollout)[-1]
    untreated = rollout.assignments.filter(wave=None)
    later = rollout.waves.get(kind="release")

    before = evaluation.guardrails[0]["details"]["highest_mantissa"]
    untreated.update(wave=later)

    assert replay(evaluation) == {"faults": False}
    drawn = stored(rollout.assignments.all())
    terms = [surveillance.Term(**term) for term in evaluation.inputs["waves"]]
    again = watch(
        surveillance.watched_at(rollout, drawn, terms),
        surveillance.firsts_of(
            unpack_scores(bytes(evaluation.scores.content)), "faults", units=drawn.units
        ),
    )
    assert int(again.highest.mantissa * 2**53) == before


def test_it_goes_on_while_the_next_wave_is_held(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    driver.run(rollout, hours=24 * 3)
    second = selectors.waves_of(rollout)[1]
    assert second.status == "held"
    held_since = second.transitions.get(new_status="held").at
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=12)

    assert rollout.status == "halted"
    assert len([one for one in looks(rollout) if one.as_of > held_since]) >= 2


def test_a_pause_freezes_it(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    services.pause(rollout, actor=make_user(), now=driver.now)
    made = len(looks(rollout))
    fail(rollout, driver, number=12, wave=1)

    driver.run(rollout, hours=48)

    assert len(looks(rollout)) == made
    assert surveillance.next_look(rollout) is None


def test_it_ends_when_the_release_starts(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    driver.run(rollout, hours=24 * 3)
    ann, bob = make_user(), make_user()
    services.advance(rollout, actor=ann, second_person=bob, reason="calm", now=driver.now)
    driver.run(rollout, hours=12)
    release = selectors.waves_of(rollout)[2]
    assert release.started_at is not None

    driver.run(rollout, hours=24)

    assert looks(rollout)[-1].as_of <= release.started_at
    assert surveillance.next_look(rollout) is None


def test_a_cutoff_is_looked_at_once(fake_fleet: FakeFleet, driver: Driver) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    last = looks(rollout)[-1]

    again = surveillance.look_back(selectors.waves_of(rollout)[1], as_of=last.as_of)

    assert again is None
    assert looks(rollout)[-1] == last


def test_page_and_api_show_the_evidence_and_what_would_halt(
    fake_fleet: FakeFleet, driver: Driver, client: Client
) -> None:
    rollout = in_the_second_wave(fake_fleet, driver)
    fail(rollout, driver, number=3, wave=1)
    driver.run(rollout, hours=7)
    viewer = make_user()
    viewer.groups.set(Group.objects.filter(name="viewer"))
    client.force_login(viewer)
    api = APIClient()
    api.force_authenticate(viewer)

    page = client.get(reverse("rollouts:detail", args=(rollout.pk,))).content.decode()
    address = f"/api/v1/rollouts/{rollout.pk}/evaluations?kind=surveillance"
    answer = api.get(address).json()

    (row,) = selectors.surveillance_of(rollout)["rows"]
    assert float(row["e"]) > 1
    assert f'<td class="cm-number">{row["e"]}</td>' in page
    assert '<td class="cm-number">100</td>' in page
    newest = answer["results"][-1]
    assert newest["kind"] == "surveillance"
    assert newest["guardrails"][0]["details"]["needed"] == 100
