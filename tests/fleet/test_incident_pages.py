"""One incident, followed from its telemetry to what became of it: the page and the API alike."""

import html
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client
from rest_framework.test import APIClient

from fleet import services, stories, tasks
from fleet.adapters import Report
from fleet.errors import IncidentClosed, IncidentRefused
from fleet.lifecycle import State, Trigger
from fleet.models import Change, Clock, Component, Fault, Incident, JobImpact, Machine, Repair
from rollouts.models import Block, Membership, Rollout, Wave
from tests.factories import (
    NOW,
    make_bundle,
    make_firmware_record,
    make_machine,
    make_observation_report,
    make_recovery_report,
    make_user,
)
from tests.fleet.repairs_world import by, gpu

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _noon() -> None:
    Clock.objects.update_or_create(
        pk=1, defaults={"mode": Clock.Mode.STEPPED, "virtual_time": NOW + HOUR}
    )


def make_incident(
    machine: Machine | None = None, *, signature: str = "xid.119", at: Any = NOW, **fields: Any
) -> Incident:
    """Let a machine report a fault and put it into its incident."""
    machine = machine or make_machine()
    told = {"machine": machine.name, "signature": signature, "time": at, **fields}
    key = f"{machine.name}/{signature}/{at}"
    services.record([Report("fault", told)], source="test", key=key, now=NOW + HOUR)
    services.record_incidents(now=NOW + HOUR)
    fault = Fault.objects.get(machine=machine, signature__name=signature, time=at)
    incident = fault.membership.incident
    return incident.merged_into or incident


def make_change(machine: Machine, **fields: Any) -> Change:
    said = {"kind": "setting", "what": "fan mode", "old": "auto", "new": "full"}
    services.record_change(
        source="cm", key=machine.name, machines=[machine.name], at=NOW, now=NOW, **said | fields
    )
    return Change.objects.get(key=machine.name)


def put_under_diagnosis(machine: Machine) -> None:
    """Take the machine out, as somebody does who then diagnoses it."""
    for trigger in (Trigger.DRAIN, Trigger.TAKE_OUT, Trigger.DIAGNOSE):
        services.move_machine(machine, trigger, actor="ann", now=NOW + MINUTE)


def logged_in(*groups: str) -> Client:
    user = make_user()
    user.groups.set(Group.objects.filter(name__in=("viewer", *groups)))
    if "technician" in groups:
        user.user_permissions.add(Permission.objects.get(codename="work_repair"))
    client = Client()
    client.force_login(user)
    return client


def api(*groups: str) -> APIClient:
    user = make_user()
    user.groups.set(Group.objects.filter(name__in=("viewer", *groups)))
    if "technician" in groups:
        user.user_permissions.add(Permission.objects.get(codename="work_repair"))
    client = APIClient()
    client.force_authenticate(user)
    return client


# --- what people say -----------------------------------------------------------------------------


def say(act: Any, incident: Incident, **said: Any) -> None:
    act(incident, actor="ann", now=NOW + HOUR, **said)


def test_each_word_about_an_incident_is_kept_and_the_newest_stands():
    incident = make_incident()

    say(services.diagnose_incident, incident, diagnosis="GSP hangs", cause="firmware")
    say(services.diagnose_incident, incident, diagnosis="bad board", cause="hardware",
        component="gpu 3", repair_kind="gpu_swap", confidence="high")  # fmt: skip
    say(services.open_case, incident, supplier_case="SR-9")
    say(services.note_incident, incident, said="parts are on the way")

    incident.refresh_from_db()
    assert (incident.cause, incident.component, incident.repair_kind) == (
        "hardware",
        "gpu 3",
        "gpu_swap",
    )
    kinds = list(incident.events.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["opened", "diagnosed", "diagnosed", "case_opened", "note"]
    assert "GSP hangs" in incident.events.filter(kind="diagnosed").first().said


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"cause": "gremlins"}, "gremlins.*accepted: unknown, hardware"),
        ({"repair_kind": "exorcism"}, "exorcism"),
        ({"confidence": "blind"}, "blind"),
        ({"diagnosis": "  "}, "diagnosis"),
        ({"diagnosis": "x" * 801}, "801"),
        ({"diagnosis": "a\x00b"}, "NUL"),
    ],
)
def test_a_diagnosis_of_unknown_words_is_refused_and_nothing_is_kept(said, word):
    incident = make_incident()

    with pytest.raises(IncidentRefused, match=word):
        say(services.diagnose_incident, incident, **{"diagnosis": "x", "cause": "hardware"} | said)

    incident.refresh_from_db()
    assert (incident.diagnosis, incident.events.count()) == ("", 1)


def test_a_closed_incident_takes_no_diagnosis_but_its_cause_may_be_found_later():
    incident = make_incident()
    services.record_incidents(now=NOW + 30 * HOUR)

    with pytest.raises(IncidentClosed, match="name its cause"):
        say(services.diagnose_incident, incident, diagnosis="x", cause="hardware")
    say(services.name_cause, incident, cause="firmware", said="the supplier's analysis says so")

    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert incident.cause == "firmware"


def test_only_a_change_of_this_machine_or_a_bundle_for_its_platform_is_linked():
    incident, other = make_incident(), make_machine()
    own = make_change(incident.machine)
    foreign = make_change(other)

    with pytest.raises(IncidentRefused, match="did not touch"):
        say(services.link_change, incident, change=foreign)
    with pytest.raises(IncidentRefused, match="is not for"):
        say(services.link_change, incident, bundle=make_bundle(platform="elsewhere"))
    with pytest.raises(IncidentRefused, match="either"):
        say(services.link_change, incident)
    say(services.link_change, incident, change=own)

    incident.refresh_from_db()
    assert incident.change == own


def test_nothing_is_said_of_what_became_part_of_another_incident():
    machine = make_machine()
    first = make_incident(machine, signature="nic.link_flap", at=NOW - 50 * MINUTE)
    part = make_incident(machine, signature="nic.link_flap", at=NOW)
    make_incident(machine, signature="nic.link_flap", at=NOW - 25 * MINUTE)

    part.refresh_from_db()
    assert part.merged_into == first
    with pytest.raises(IncidentClosed, match=f"part of incident {first.pk}"):
        say(services.note_incident, part, said="hello")


def test_a_diagnosis_orders_its_repair_in_the_same_act_or_does_neither():
    incident = make_incident()
    said = {"diagnosis": "dead", "cause": "hardware", "component": "gpu 3"}
    with pytest.raises(IncidentRefused, match="a kind of repair is needed"):
        say(services.diagnose_and_act, incident, repair_kind="", **said)

    put_under_diagnosis(incident.machine)
    say(services.diagnose_and_act, incident, repair_kind="gpu_swap", **said)

    repair = Repair.objects.get(incident=incident)
    assert (repair.kind, repair.component) == ("gpu_swap", "gpu 3")
    assert Machine.objects.get(pk=incident.machine_id).state == State.AWAITING_REPAIR


def test_where_no_fault_is_found_the_machine_goes_to_the_gate_for_that():
    incident = make_incident()
    put_under_diagnosis(incident.machine)
    said = {"diagnosis": "runs clean for hours", "cause": "no_fault_found"}
    with pytest.raises(IncidentRefused, match="none where no fault was found"):
        say(services.diagnose_and_act, incident, repair_kind="gpu_swap", **said)

    say(services.diagnose_and_act, incident, **said)

    gate = incident.gates.get()
    assert gate.plan.kind == "no_fault_found"
    assert gate.machine.state == State.AWAITING_VALIDATION


# --- the story -----------------------------------------------------------------------------------


def test_a_story_tells_the_firmware_of_the_time_and_not_of_today():
    machine = make_machine()
    make_firmware_record(machine, version="1.0", since=NOW - 40 * HOUR)
    make_firmware_record(machine, version="1.1", since=NOW - 5 * HOUR)
    make_firmware_record(machine, version="1.2", stage="staged", since=NOW - HOUR)
    make_firmware_record(machine, version="1.2", since=NOW + MINUTE)
    told = [
        make_observation_report(machine, start=NOW - n * HOUR, end=NOW - (n - 1) * HOUR,
                                boot_id="b1" if n > 3 else "b2")
        for n in range(1, 7)
    ]  # fmt: skip
    services.record(told, source="test", key="seen", now=NOW)
    incident = make_incident(machine, boot_id="b2")

    firmware = stories.story(incident, as_of=NOW + HOUR).firmware

    assert firmware.parts == [stories.Part("bmc", "1.1", "1.2", "")]
    assert (firmware.changed_hours, firmware.boot_id, firmware.booted_hours) == (5.0, "b2", 3.0)


def test_a_story_names_the_machines_place_in_a_rollout_that_was_open_then():
    machine = make_machine()
    rollout = Rollout.objects.create(
        name="may", bundle=make_bundle(), selector="x", plan={}, plan_digest="x", seed=1,
        status="completed", author=make_user(), created_at=NOW, finished_at=NOW + 9 * HOUR,
    )  # fmt: skip
    wave = Wave.objects.create(
        rollout=rollout, number=1, size=1, window_hours=2, started_at=NOW - HOUR,
        finished_at=NOW + HOUR, status="widened",
    )  # fmt: skip
    block = Block.objects.create(wave=wave, number=1)
    Membership.objects.create(
        wave=wave, block=block, machine=machine, unit=machine.name, stratum="", arm="canary"
    )
    incident = make_incident(machine)

    [arm] = stories.story(incident, as_of=NOW + 20 * HOUR).firmware.arms

    assert (arm.name, arm.arm, arm.is_compared) == ("may", "canary", True)
    assert incident.machine.pk == machine.pk


def test_a_story_follows_the_event_to_the_job_and_to_what_came_later():
    machine = make_machine()
    ended = {"recovered_at": NOW + 4 * MINUTE, "path": "replica_restarted"}
    recovery = make_recovery_report(machine, time=NOW + MINUTE, repeated_seconds=90.0, **ended)
    services.record([recovery], source="test", key="r", now=NOW + HOUR)
    incident = make_incident(machine, job="job-1")
    JobImpact.objects.create(
        incident=incident, job="job-1", outcome="replica_restarted", fault_at=NOW,
        resumed_at=NOW + 4 * MINUTE, source="test", source_key="1", recorded_at=NOW,
    )  # fmt: skip
    make_incident(machine, signature="xid.62", at=NOW + 40 * MINUTE)
    make_incident(machine, signature="xid.79", at=NOW + 50 * MINUTE)

    story = stories.story(incident, as_of=NOW + 2 * HOUR)

    assert story.jobs == ["job-1"]
    assert [one.path for one in story.recoveries] == ["replica_restarted"]
    assert [one.outcome for one in story.impacts] == ["replica_restarted"]
    assert (story.later.same, story.later.others) == (1, 1)
    assert story.later.exposure_hours == pytest.approx(2.0)
    assert [row.source for row in story.timeline][:2] == ["fault", "job"]


def test_a_machine_that_is_out_has_no_later_yet():
    incident = make_incident()
    put_under_diagnosis(incident.machine)

    later = stories.story(incident, as_of=NOW + 9 * HOUR).later

    assert (later.since, later.exposure_hours) == (None, 0.0)


def test_a_story_goes_on_to_the_repair_its_parts_and_its_gate():
    incident = make_incident(component="gpu 3")
    machine = incident.machine
    Component.objects.create(machine=machine, kind="gpu", slot="3", serial="G-OLD")
    put_under_diagnosis(machine)
    said = {"diagnosis": "dead", "cause": "hardware", "repair_kind": "gpu_swap"}
    say(services.diagnose_and_act, incident, **said)
    repair = Repair.objects.get(incident=incident)
    worker = by(make_user("kim"))
    services.start_repair(repair, **worker, now=NOW + 2 * HOUR)
    services.close_repair(repair, swaps=[gpu()], **worker, now=NOW + 3 * HOUR)

    told = api().get(f"/api/v1/incidents/{incident.pk}").json()
    page = logged_in().get(f"/incidents/{incident.pk}/").content.decode()

    assert told["repairs"][0]["swaps"][0]["new_serial"] == "G-NEW"
    assert [gate["status"] for gate in told["gates"]] == ["open"]
    assert "G-NEW" in page
    assert told["gates"][0]["why"] in html.unescape(page)


# --- the pages -----------------------------------------------------------------------------------


def test_the_list_shows_what_is_open_and_can_be_narrowed():
    gsp, bus = make_incident(), make_incident(signature="xid.79")
    over = make_incident(signature="nic.link_flap", at=NOW - HOUR)
    client = logged_in()

    whole = client.get("/incidents/").content.decode()
    narrow = client.get("/incidents/?family=gpu.off_bus&status=").content.decode()

    assert all(f"/incidents/{one.pk}/" in whole for one in (gsp, bus))
    assert f"/incidents/{over.pk}/" not in whole
    assert f"/incidents/{gsp.pk}/" not in narrow
    assert f"/incidents/{bus.pk}/" in narrow


@pytest.mark.parametrize(
    "query", ["famly=nic", "family=unheard", "cause=gremlins", "platform=none-such", "status=x"]
)
def test_the_list_refuses_what_it_does_not_know(query):
    make_incident()

    response = logged_in().get(f"/incidents/?{query}")

    assert response.status_code == 400
    assert 'role="alert"' in response.content.decode()
    assert "xid.119" not in response.content.decode()


def test_the_list_goes_on_after_its_page(monkeypatch):
    monkeypatch.setattr("fleet.views.lists.PAGE_SIZE", 1)
    older, newer = make_incident(at=NOW - MINUTE), make_incident()
    client = logged_in()

    first = client.get("/incidents/?status=open").content.decode()
    second = client.get(f"/incidents/?status=open&before={newer.pk}").content.decode()

    assert f"before={newer.pk}" in first
    assert f"/incidents/{older.pk}/" not in first
    assert f"/incidents/{older.pk}/" in second


def test_the_page_takes_a_diagnosis_and_shows_it():
    incident = make_incident(component="gpu 3")
    client = logged_in("technician")
    form = {
        "diagnose-diagnosis": "GSP does not answer <b>",
        "diagnose-cause": "firmware",
        "diagnose-component": "gpu 3",
        "diagnose-repair_kind": "firmware_change",
        "diagnose-confidence": "medium",
    }

    response = client.post(f"/incidents/{incident.pk}/diagnose", form, follow=True)

    assert response.status_code == 200
    assert "GSP does not answer &lt;b&gt;" in response.content.decode()
    assert Incident.objects.get(pk=incident.pk).cause == "firmware"


def test_a_form_with_something_wrong_comes_back_with_what_was_typed():
    incident = make_incident()
    form = {"diagnose-diagnosis": "typed", "diagnose-cause": "gremlins"}

    response = logged_in("technician").post(f"/incidents/{incident.pk}/diagnose", form)

    assert response.status_code == 400
    assert "typed" in response.content.decode()


def test_a_change_can_be_linked_and_a_case_opened_on_the_page():
    incident = make_incident()
    change = make_change(incident.machine)
    client = logged_in("technician")

    client.post(f"/incidents/{incident.pk}/link", {"link-change": change.pk})
    client.post(f"/incidents/{incident.pk}/case", {"case-supplier_case": "SR-1"})
    client.post(f"/incidents/{incident.pk}/cause",
                {"cause-cause": "setting", "cause-said": "seen"})  # fmt: skip
    client.post(f"/incidents/{incident.pk}/note", {"note-said": "hello"})

    incident.refresh_from_db()
    assert (incident.change, incident.supplier_case, incident.cause) == (change, "SR-1", "setting")
    assert "hello" in client.get(f"/incidents/{incident.pk}/").content.decode()


@pytest.mark.parametrize("name", ["diagnose", "cause", "link", "case", "note"])
def test_who_may_not_repair_reads_and_says_nothing(name):
    incident = make_incident()
    client = logged_in()

    assert client.get(f"/incidents/{incident.pk}/").status_code == 200
    assert client.post(f"/incidents/{incident.pk}/{name}", {}).status_code == 403
    assert incident.events.count() == 1


def test_the_page_of_a_part_shows_the_whole():
    machine = make_machine()
    first = make_incident(machine, signature="nic.link_flap", at=NOW - 50 * MINUTE)
    part = make_incident(machine, signature="nic.link_flap", at=NOW)
    make_incident(machine, signature="nic.link_flap", at=NOW - 25 * MINUTE)

    text = logged_in("technician").get(f"/incidents/{part.pk}/").content.decode()

    assert f"made incident {part.pk} part of incident {first.pk}" in text
    assert "3 faults" in text


# --- the API -------------------------------------------------------------------------------------


def test_the_resource_tells_the_same_story():
    incident = make_incident(component="gpu 3", job="job-1")

    told = api().get(f"/api/v1/incidents/{incident.pk}").json()

    assert (told["machine"], told["family"]) == (incident.machine.name, "gpu.gsp")
    assert told["signatures"] == [{"signature": "xid.119", "count": 1}]
    assert told["faults"][0]["component"] == "gpu 3"
    assert told["jobs"] == ["job-1"]
    assert [event["kind"] for event in told["said"]] == ["opened"]
    assert {"firmware", "impacts", "repairs", "gates", "later", "timeline"} <= set(told)


def test_the_list_over_rest_is_filtered_and_refuses_unknown_names():
    gsp = make_incident()
    make_incident(signature="nic.link_flap")
    client = api()

    found = client.get("/api/v1/incidents?family=gpu.gsp&is_open=true").json()["results"]

    assert [one["id"] for one in found] == [gsp.pk]
    assert client.get("/api/v1/incidents?famly=gpu.gsp").status_code == 400
    assert client.get("/api/v1/incidents?cause=gremlins").status_code == 400


def test_a_diagnosis_over_rest_is_answered_with_the_story():
    incident = make_incident()
    client = api("technician")
    put_under_diagnosis(incident.machine)
    said = {
        "diagnosis": "dead",
        "cause": "hardware",
        "component": "gpu 3",
        "repair_kind": "gpu_swap",
        "is_acted_on": True,
    }

    response = client.post(f"/api/v1/incidents/{incident.pk}/diagnose", said)

    assert response.status_code == 200
    assert response.json()["cause"] == "hardware"
    assert [repair["kind"] for repair in response.json()["repairs"]] == ["gpu_swap"]


def test_bad_words_over_rest_are_problems_with_a_code():
    incident = make_incident()
    foreign = make_change(make_machine())
    client = api("technician")
    address = f"/api/v1/incidents/{incident.pk}"

    unknown = client.post(f"{address}/diagnose", {"diagnosis": "x", "cause": "gremlins"})
    other = client.post(f"{address}/link", {"change": foreign.pk})
    stray = client.post(f"{address}/note", {"said": "x", "sayd": "y"})
    services.record_incidents(now=NOW + 40 * HOUR)
    closed = client.post(f"{address}/diagnose", {"diagnosis": "x", "cause": "hardware"})

    assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid")
    assert (other.status_code, other.json()["code"]) == (400, "incident_refused")
    assert stray.status_code == 400
    assert (closed.status_code, closed.json()["code"]) == (409, "incident_closed")
    assert api().post(f"{address}/note", {"said": "x"}).status_code == 403


# --- the task ------------------------------------------------------------------------------------


def test_telemetry_with_faults_becomes_incidents_by_the_task_however_often_it_runs():
    machine = make_machine()
    client = api("reporter")
    record = {"machine": machine.name, "time": NOW.isoformat(), "signature": "xid.79"}

    client.post("/api/v1/telemetry/faults", {"source": "s", "key": "k", "records": [record]})
    tasks.follow_up()
    tasks.follow_up()

    assert Incident.objects.get().family == "gpu.off_bus"
