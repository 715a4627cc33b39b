"""Changes made elsewhere: one list of what changed, contaminated comparisons, suspects, rosters."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse

from fleet import services as fleet
from fleet.models import Change, ClockJump, Machine
from rollouts import contamination, pipeline, services
from rollouts.changes import MOST, changed_since
from rollouts.contamination import contaminations
from rollouts.errors import UnknownSignature
from rollouts.explain import explain
from rollouts.models import Rollout, Wave
from rollouts.planning.interactions import interacts
from rollouts.roster import roster_changes
from rollouts.suspects import line_up
from tests.factories import (
    NOW,
    make_fault_report,
    make_firmware_record,
    make_machine,
    make_machines,
    make_user,
)
from tests.rollouts import pages, rows, test_api

HOUR = timedelta(hours=1)


def report(machines: Sequence[Machine], **changes: Any) -> Change:
    told = {
        "source": "ansible",
        "key": f"run-{Change.objects.count()}",
        "kind": "driver",
        "what": "nvidia-driver",
        "machines": [machine.name for machine in machines],
        "old": "550",
        "new": "560",
        "at": NOW + HOUR,
        "now": NOW + 2 * HOUR,
    }
    return fleet.record_change(**{**told, **changes})


def compared(**fields: Any) -> tuple[Rollout, Wave, list[Machine], list[Machine]]:
    """A rollout of GPU firmware whose first wave has begun: 4 canaries, 16 controls."""
    rollout = rows.running(mode="automatic", **fields)
    pipeline.enact(rollout, now=NOW)
    wave = rollout.waves.get(number=1)
    arms: dict[str, list[Machine]] = {"canary": [], "control": []}
    for member in wave.members.select_related("machine"):
        arms[member.arm].append(member.machine)
    return rollout, wave, arms["canary"], arms["control"]


# --- interactions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "changed", "acts"),
    [
        (["gpu"], "gpu", True),
        (["gpu"], "nvidia-driver", True),
        (["gpu"], "Fabric Manager", True),
        (["nic"], "leaf switch firmware", True),
        (["bios"], "BMC", True),
        (["bmc"], "nvidia-driver", False),
        (["ssd"], "leaf switch", False),
    ],
)
def test_a_changed_component_acts_on_what_depends_on_it(kinds: list[str], changed: str, acts: bool):
    assert bool(interacts(kinds, changed=[changed])) is acts


# --- contamination -------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_driver_that_reached_controls_only_contaminates_and_the_wave_says_so():
    rollout, wave, _, controls = compared()
    report(controls)

    [found] = contaminations(wave)

    assert (found.canaries, found.controls, found.matters) == (0, 16, True)
    assert found.why == "nvidia-driver acts on gpu; it fell unevenly"
    said = [one.present for one in explain(wave) if "advisory" in one.what]
    assert said == [str(found)]
    assert not contamination.widens_by_itself(wave)
    client = pages.client_of("viewer")
    assert str(found) in pages.detail(client, rollout)


@pytest.mark.django_db
def test_a_change_that_reached_both_arms_alike_is_shown_and_does_not_matter():
    _, wave, canaries, controls = compared()
    report([*canaries, *controls])

    [found] = contaminations(wave)

    assert (found.canaries, found.controls, found.matters) == (4, 16, False)
    assert contamination.widens_by_itself(wave)


@pytest.mark.django_db
def test_one_machine_that_got_the_same_component_matters():
    _, wave, _, controls = compared()
    report(controls[:1], kind="firmware", what="gpu vbios")

    assert [found.matters for found in contaminations(wave)] == [True]


@pytest.mark.django_db
def test_an_unrelated_change_matters_only_where_it_fell_unevenly():
    _, wave, canaries, controls = compared()
    report(controls[:4], kind="setting", what="swappiness")
    report(canaries, kind="setting", what="hugepages")

    assert [found.what.split()[1] for found in contaminations(wave)] == ["hugepages:"]


@pytest.mark.django_db
def test_what_was_changed_before_the_wave_began_is_no_contamination():
    _, wave, _, controls = compared()
    report(controls, at=NOW - HOUR)

    assert contaminations(wave) == []


# --- what changed --------------------------------------------------------------------------------


@pytest.mark.django_db
def test_one_question_answers_what_changed_since_whoever_changed_it():
    rollout, _, _, controls = compared()
    report(controls[:2])
    make_firmware_record(controls[3], kind="bios", version="9", since=NOW + HOUR)
    make_firmware_record(
        controls[4], kind="gpu", version="2.0", since=NOW + HOUR, evidence={"attempt": 1}
    )
    rollout.attempts.filter(pk=rollout.attempts.first().pk).update(
        status="failed", finished_at=NOW + HOUR
    )
    ClockJump.objects.create(host="h", seconds=90, before=NOW + HOUR, after=NOW + 2 * HOUR)
    services.halt(rollout, actor=make_user("ann"), reason="smoke", now=NOW + HOUR)

    answer = changed_since(NOW, until=NOW + 2 * HOUR)

    told = {(row.source, row.what, row.who, row.machines) for row in answer.rows}
    assert {
        ("report", "driver nvidia-driver: 550 → 560", "ansible", 2),
        ("read_back", "bios 9 was read back", "somebody else", 1),
        ("install", "wave 1: installed, 1 failed", "", 1),
        ("order", "halt: smoke", "ann", None),
        ("move", "rollout: running → halted", "", None),
        ("move", "wave 1: pending → installing", "", 4),
    } <= told
    assert "clock" in {row.source for row in answer.rows}
    assert not any("gpu 2.0 was read back" in row.what for row in answer.rows)
    assert changed_since(NOW + HOUR + HOUR / 2, until=NOW + 2 * HOUR).rows == ()


@pytest.mark.django_db
def test_a_long_answer_says_how_much_it_left_off():
    machine = make_machine(rack="r1")
    Change.objects.bulk_create(
        Change(
            source="s",
            key=str(number),
            kind="setting",
            what="x",
            machine_count=1,
            at=NOW,
            recorded_at=NOW,
        )
        for number in range(MOST + 3)
    )

    answer = changed_since(NOW - HOUR, until=NOW + HOUR)

    assert (len(answer.rows), answer.left_off) == (MOST, 3)
    assert machine.rack == "r1"


@pytest.mark.django_db
def test_changes_are_reported_and_asked_for_over_the_api(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleet.clock.now", lambda: NOW)
    make_machines(2, rack="r1")
    body = {
        "source": "ansible",
        "key": "run-1",
        "kind": "driver",
        "what": "nvidia-driver",
        "selector": "rack=r1",
        "at": "2026-03-02T11:00:00Z",
    }
    reporter, viewer = test_api.client_of("reporter"), test_api.client_of("viewer")

    made = [reporter.post("/api/v1/changes", body) for _ in range(2)]
    refused = viewer.post("/api/v1/changes", body)
    misspelt = reporter.post("/api/v1/changes", {**body, "key": "2", "selector": "rakc=r1"})
    forged = reporter.post("/api/v1/changes", {**body, "key": "3", "reported_by": "ann"})
    told = viewer.get("/api/v1/changes", {"since": "2026-03-02T10:00:00Z"}).json()
    wrong = viewer.get("/api/v1/changes", {"sicne": "2026-03-02T10:00:00Z"})

    assert [answer.status_code for answer in made] == [201, 201], made[0].content
    assert made[0].json() == made[1].json()
    assert made[0].json()["machine_count"] == 2
    assert [answer.status_code for answer in (refused, misspelt, forged, wrong)] == [
        403,
        400,
        400,
        400,
    ]
    assert [row["what"] for row in told["rows"]] == ["driver nvidia-driver: ? → ?"]


# --- suspects ------------------------------------------------------------------------------------


def faults(machines: Sequence[Machine], *times: datetime, signature: str = "xid.119") -> None:
    reports = [
        make_fault_report(machine, time=time, signature=signature)
        for machine in machines
        for time in times
    ]
    result = fleet.record(
        reports, source="t", key=f"{len(machines)} from {times[0]}", now=NOW + 9 * HOUR
    )
    assert not result.refused


@pytest.mark.django_db
def test_a_spike_ranks_the_change_that_touched_the_failing_machines_first():
    machines = make_machines(40)
    report(machines[:10], what="nvidia-driver", at=NOW)
    report(machines[20:], what="leaf switch", kind="switch", at=NOW)
    faults(machines[:8], NOW + HOUR, NOW + 3 * HOUR)
    faults(machines[25:26], NOW + 2 * HOUR)

    found = line_up("xid.*", since=NOW, now=NOW + 4 * HOUR)

    first, second = found.suspects
    assert (found.events, found.expected) == (17, 0.0)
    assert first.what.startswith("nvidia-driver")
    assert (first.seen.touched.events, first.seen.untouched.events) == (16, 1)
    assert (first.seen.touched.exposure_hours, first.seen.untouched.exposure_hours) == (40, 120)
    assert first.seen.share == pytest.approx((16 - 40 / 120) / 17)
    assert second.seen.share == 0.0


@pytest.mark.django_db
def test_a_burst_on_one_machine_counts_as_one_episode():
    machines = make_machines(4)
    report(machines[:1], at=NOW)
    faults(machines[:1], *(NOW + HOUR + timedelta(minutes=minute) for minute in range(0, 50, 10)))

    assert line_up("xid.119", since=NOW, now=NOW + 4 * HOUR).events == 1


@pytest.mark.django_db
def test_a_rollout_under_way_is_a_suspect_from_when_each_machine_was_written_to():
    rollout, _, canaries, _ = compared()
    rollout.attempts.filter(machine__in=canaries[:2]).update(
        status="succeeded", started_at=NOW + HOUR
    )
    rollout.attempts.filter(machine__in=canaries[2:]).update(status="draining")
    faults(canaries[:2], NOW + 2 * HOUR)

    [suspect] = line_up("xid.119", since=NOW, now=NOW + 4 * HOUR).suspects

    assert (suspect.rollout, suspect.machines) == (rollout.pk, 2)
    assert suspect.seen.touched.exposure_hours == 6.0


@pytest.mark.django_db
def test_many_reported_changes_do_not_hide_a_later_rollout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollouts.suspects.MOST", 2)
    rollout, _, canaries, controls = compared()
    rollout.attempts.filter(machine__in=canaries).update(
        status="succeeded", started_at=NOW + 2 * HOUR
    )
    for _ in range(3):
        report(controls[:1])

    suspects = line_up("xid.119", since=NOW, now=NOW + 4 * HOUR).suspects

    assert len(suspects) == 2
    assert rollout.pk in {suspect.rollout for suspect in suspects}


@pytest.mark.django_db
def test_an_unknown_signature_is_refused_and_an_old_change_is_no_suspect():
    machines = make_machines(4)
    report(machines[:2], at=NOW - timedelta(days=8))

    with pytest.raises(UnknownSignature, match=r"'xdi\.\*'"):
        line_up("xdi.*", since=NOW, now=NOW + HOUR)
    assert line_up("xid.119", since=NOW, now=NOW + HOUR).suspects == ()


@pytest.mark.django_db
def test_suspects_are_told_by_api_and_page_with_figures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleet.clock.now", lambda: NOW + 4 * HOUR)
    machines = make_machines(40)
    report(machines[:10], at=NOW)
    faults(machines[:8], NOW + HOUR)
    query = {"signature": "xid.119", "since": "2026-03-02T12:00:00Z"}

    told = test_api.client_of("viewer").get("/api/v1/suspects", query).json()
    wrong = test_api.client_of("viewer").get("/api/v1/suspects", {**query, "signature": "no"})
    page = pages.client_of("viewer").get(
        reverse("rollouts:changes"), {"signature": "xid.119", "since": "2026-03-02T12:00"}
    )

    [suspect] = told["suspects"]
    assert "observational" in told["note"]
    assert suspect["touched"] == {"events": 8, "exposure_hours": 40.0}
    assert suspect["after"]["estimate"] is None  # infinite: nobody else had any
    assert suspect["after"]["low"] == pytest.approx(3 * 0.025 ** (1 / 8) / (1 - 0.025 ** (1 / 8)))
    assert (wrong.status_code, wrong.json()["code"]) == (400, "unknown_signature")
    content = page.content.decode()
    assert "nvidia-driver: 550 → 560" in content
    assert "100 %" in content
    assert "∞" in content
    bad = pages.client_of("viewer").get(reverse("rollouts:changes"), {"signature": "no"})
    assert "no signature is called" in bad.content.decode()


# --- who changed under a rollout -----------------------------------------------------------------


@pytest.mark.django_db
def test_machines_that_left_moved_or_came_late_are_listed_by_their_last_known_name():
    rollout, _, canaries, controls = compared()
    gone, moved, sick = controls[:3]
    fleet.retire_machine(gone, actor="ann", now=NOW + HOUR, reason="sold")
    fleet.relocate(moved, places={"rack": "r9"}, actor="ann", now=NOW + HOUR)
    Machine.objects.filter(pk=sick.pk).update(state="diagnosing", may_take_work=False)
    services.exclude(
        rollout, machines=[canaries[0].name], actor=make_user("bob"), reason="vendor", now=NOW
    )
    late = make_machine(now=NOW + HOUR)
    other = make_machine(now=NOW + HOUR, platform="hgx")

    found = roster_changes(rollout)

    assert [name for name, _ in found.retired.machines] == [gone.name]
    assert found.moved.machines == ((moved.name, "rack: ? → r9"),)
    assert found.out_of_service.machines == ((sick.name, "diagnosing"),)
    assert found.excluded.machines == ((canaries[0].name, "bob: vendor"),)
    assert [name for name, _ in found.late.machines] == [late.name]
    assert not rollout.assignments.filter(machine__in=(late, other)).exists()
    told = test_api.client_of("viewer").get(f"/api/v1/rollouts/{rollout.pk}/roster").json()
    assert told["retired"]["machines"][0]["machine"] == gone.name
    page = pages.detail(pages.client_of("viewer"), rollout)
    assert gone.name in page
    assert late.name in page


@pytest.mark.django_db
def test_the_page_refuses_to_look_back_to_the_first_of_all_days():
    address = reverse("rollouts:changes")

    page = pages.client_of("viewer").get(
        address, {"since": "0001-01-01T00:00", "signature": "xid.*"}
    )

    assert page.status_code == 200
    assert "The year 1 is not in those from 1970 to 2199." in page.content.decode()
