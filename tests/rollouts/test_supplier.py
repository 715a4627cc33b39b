"""What a supplier may see of a case: named fields, one time line, nothing of the house."""

import csv
import hashlib
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import models
from django.test import Client
from rest_framework.test import APIClient

from fleet import services as fleet
from fleet.adapters import Report
from fleet.errors import AppendOnly
from fleet.models import (
    Change,
    ChangedMachine,
    CheckResult,
    Clock,
    Evidence,
    Fault,
    FaultSignature,
    FirmwareRecord,
    Gate,
    GateCheck,
    GateEvent,
    GatePlan,
    Incident,
    IncidentEvent,
    IncidentFault,
    Job,
    JobImpact,
    Machine,
    PartSwap,
    Platform,
    Recovery,
    Repair,
    RepairEvent,
    StateChange,
    Team,
)
from rollouts import services
from rollouts.errors import PackageRefused
from rollouts.models import SupplierPackage
from rollouts.supplier import gather, render
from rollouts.supplier.allowed import FIELDS, Filter, Names, Row, secrets
from tests.factories import NOW, make_machine, make_user

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
CASE = "RMA-1017"
FORMS = ("html", "json", "csv")


# --- a case with something in every field ---------------------------------------------------------


class World:
    """One supplier case, every free text field of which holds the secret."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.planted: set[str] = set()
        user = User.objects.create(username=secret, first_name=secret, email=secret)
        team = self.make(Team)
        platform = self.make(Platform)
        self.machine = self.make(
            Machine,
            platform=platform,
            owner_team=team,
            state="in_service",
            entered_at=NOW,
            registered_at=NOW - 24 * HOUR,
            labels={"asset": secret},
        )
        signature = self.make(
            FaultSignature,
            kind="unknown",
            severity="critical",
            first_seen_at=NOW,
            components=[],
            sympathetic_to=[],
        )
        fault = self.make(
            Fault,
            machine=self.machine,
            signature=signature,
            severity="critical",
            time=NOW,
            received_at=NOW,
        )
        self.incident = self.make(
            Incident,
            machine=self.machine,
            signature=signature,
            severity="critical",
            kind="unknown",
            opened_at=NOW,
            last_fault_at=NOW,
            closed_at=NOW + HOUR,
            supplier_case=CASE,
        )
        IncidentFault.objects.create(incident=self.incident, fault=fault)
        said = {"at": NOW, "recorded_at": NOW, "user": user}
        self.make(IncidentEvent, incident=self.incident, **{**said, "kind": "note"})
        self.make(Job, seen_at=NOW)
        self.make(
            Recovery,
            machine=self.machine,
            time=NOW,
            path="job_lost",
            received_at=NOW,
            recovered_at=NOW + HOUR,
        )
        self.make(
            JobImpact,
            incident=self.incident,
            outcome="job_lost",
            fault_at=NOW,
            resumed_at=NOW + HOUR,
            recorded_at=NOW,
            user=user,
        )
        for stage in FirmwareRecord.Stage.values:
            self.make(
                FirmwareRecord,
                machine=self.machine,
                stage=stage,
                source="bmc",
                since=NOW - HOUR,
                recorded_at=NOW,
            )
        for kind in ("driver", "setting"):
            change = self.make(
                Change,
                key=f"{secret}/{kind}",
                kind=kind,
                machine_count=1,
                at=NOW + HOUR,
                recorded_at=NOW,
            )
            ChangedMachine.objects.create(change=change, machine=self.machine)
        self.make(
            StateChange, machine=self.machine, old_state="in_service", new_state="draining", **said
        )
        self.make(
            StateChange,
            machine=self.machine,
            old_state="awaiting_release",
            new_state="in_service",
            **said | {"at": NOW + 3 * HOUR},
        )
        self.repair = self.make(
            Repair,
            machine=self.machine,
            incident=self.incident,
            kind="gpu_swap",
            status="closed",
            ordered_at=NOW,
            closed_at=NOW + 2 * HOUR,
            technician=user,
            outcome="repaired",
        )
        self.make(RepairEvent, repair=self.repair, **said)
        self.make(PartSwap, machine=self.machine, repair=self.repair, at=NOW, recorded_at=NOW)
        plan = self.make(GatePlan, kind="gpu_swap", level=7, version=1, checks=[], recorded_at=NOW)
        gate = self.make(
            Gate,
            machine=self.machine,
            plan=plan,
            repair=self.repair,
            incident=self.incident,
            review="human",
            status="passed",
            opened_at=NOW,
        )
        self.make(GateEvent, gate=gate, **said)
        check = self.make(GateCheck, gate=gate, position=1, rule={"kind": secret, "value": secret})
        result = self.make(CheckResult, gate_check=check, is_passed=True, value=3.0, **said)
        self.make(Evidence, repair=self.repair, result=result, size_bytes=1, **said)

    def make(self, model: type[models.Model], **fields: Any) -> Any:
        """Make a row; what is not said of its texts is the secret."""
        for field in model._meta.concrete_fields:
            is_text = isinstance(field, models.CharField | models.TextField)
            if not is_text or field.choices or field.name in fields:
                continue
            fields[field.name] = self.secret[: field.max_length]
            self.planted.add(f"{model.__name__}.{field.name}")
        if model is FirmwareRecord:
            fields |= {"evidence": {"note": self.secret}}
        if model is Fault:
            fields |= {"attributes": {"note": self.secret}}
        return model._default_manager.create(**fields)


SECRETS = {
    "password": "Hunter2!pa$$w0rd",
    "address": "10.20.30.40",
    "public address": "203.0.113.77",
    "host name": "gpu-rack7.prod.example.internal",
    "user name": "alice.operator",
    "job name": "llama-secret-run-7",
    "markup": "<script>alert(1)</script>",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_no_secret_in_any_text_field_leaves(secret):
    World(secret)

    package = gather(CASE, now=NOW + 5 * HOUR)

    for form in FORMS:
        assert secret not in render(package, form=form).decode()
    assert package.left_out["free texts"] >= 10


def test_every_text_field_of_what_a_package_reads_was_planted():
    # A field that is added to one of these tables is in the test above without further ado.
    world = World("planted")

    told = {name.split(".")[0] for name in world.planted}

    read = {"Machine", "Fault", "Incident", "IncidentEvent", "JobImpact", "Recovery", "Repair"}
    read |= {"FirmwareRecord", "Change", "StateChange", "RepairEvent", "PartSwap", "Gate"}
    assert read | {"GateEvent", "GateCheck", "CheckResult", "Evidence", "FaultSignature"} <= told
    known = {model.__name__ for model in apps.get_app_config("fleet").get_models()}
    assert told <= known
    assert len(world.planted) > 70


@pytest.mark.parametrize("name", ["address", "host name", "user name", "job name"])
def test_a_text_that_is_let_through_names_nobody_and_nothing_of_the_house(name):
    World(SECRETS[name])
    seen = gather(CASE, now=NOW + 5 * HOUR)

    package = gather(CASE, texts=[text.key for text in seen.texts], now=NOW + 5 * HOUR)

    assert any(row.source == "text" for row in package.rows)
    for form in FORMS:
        assert SECRETS[name] not in render(package, form=form).decode()


# --- a case as it is -----------------------------------------------------------------------------


def make_case() -> tuple[Machine, Incident, Repair]:
    """A fault, an incident, a driver change, a swapped GPU, a checked gate, a later fault."""
    machine = make_machine("node-a17", versions={"bmc": "1.0", "gpu": "96.00.74"}, job="run-9")
    told = [
        Report(
            "fault",
            {
                "machine": machine.name,
                "time": NOW,
                "signature": "xid.119",
                "component": "gpu 3",
                "job": "run-9",
            },
        ),
        Report(
            "recovery",
            {
                "machine": machine.name,
                "job": "run-9",
                "time": NOW,
                "recovered_at": NOW + HOUR,
                "path": "job_restarted_from_checkpoint",
                "recovery_seconds": 3600.0,
            },
        ),
    ]
    fleet.record(told, source="dcgm", key="one", now=NOW)
    fleet.record_incidents(now=NOW)
    incident = Incident.objects.get(machine=machine)
    by = {"actor": "bob", "user": None, "now": NOW + HOUR}
    fleet.open_case(incident, supplier_case=CASE, said="opened with node-a17's logs", **by)
    fleet.record_change(
        source="cm",
        key="c",
        kind="driver",
        what="driver",
        old="550.1",
        new="560.2",
        machines=[machine.name],
        at=NOW + HOUR,
        now=NOW + HOUR,
    )
    repair = Repair.objects.create(
        machine=machine,
        incident=incident,
        kind="gpu_swap",
        status="closed",
        ordered_at=NOW + HOUR,
        closed_at=NOW + 2 * HOUR,
        outcome="repaired",
        note="bob swapped it; see 10.0.0.9",
    )
    PartSwap.objects.create(
        machine=machine,
        repair=repair,
        kind="gpu",
        slot="3",
        old_serial="1654920000123",
        new_serial="1654920000456",
        at=NOW + 2 * HOUR,
        actor="bob",
        recorded_at=NOW,
    )
    return machine, incident, repair


def package_of(**fields: Any) -> Any:
    return gather(CASE, **{"now": NOW + 6 * HOUR, **fields})


def test_one_time_line_follows_the_event_from_telemetry_to_the_part():
    make_case()

    rows = package_of().rows

    assert [row.at for row in rows] == sorted(row.at for row in rows)
    told = {row.source: dict(row.told) for row in rows}
    assert told["fault"] == {"signature": "xid.119", "component": "gpu 3", "severity": "major"}
    assert told["interruption"]["job"] == "J1"
    assert told["interruption"]["outcome"] == "job_restarted_from_checkpoint"
    assert told["change"] == {
        "change_kind": "driver",
        "component": "driver",
        "old": "550.1",
        "new": "560.2",
    }
    assert told["part"]["old"] == "1654920000123"
    assert told["part"]["new"] == "1654920000456"
    assert {row.machine for row in rows} == {"M1"}


def test_an_incident_says_what_ran_when_it_began_and_what_came_after():
    make_case()

    [incident] = package_of().incidents

    ran = {part["component"]: part["active"] for part in incident["firmware_when_it_began"]}
    assert ran == {"bmc": "1.0", "gpu": "96.00.74"}
    assert incident["later"]["same_again"] == 0
    assert incident["opened_at"] == "2026-03-02T12:00:00Z"


def test_incidents_are_found_by_the_case_of_their_repair_too():
    _, _, repair = make_case()
    Repair.objects.filter(pk=repair.pk).update(supplier_case="RMA-2")

    assert len(gather("RMA-2", now=NOW + 6 * HOUR).incidents) == 1


def test_the_csv_holds_the_same_rows_as_the_json_and_no_formula():
    make_case()
    FirmwareRecord.objects.create(
        machine=Machine.objects.get(name="node-a17"),
        kind="gpu",
        stage="staged",
        version="=1+1",
        since=NOW,
        source="bmc",
        recorded_at=NOW,
    )
    package = package_of()

    document = json.loads(render(package, form="json"))
    table = list(csv.DictReader(io.StringIO(render(package, form="csv").decode())))

    assert [row["time"] for row in table] == [row["time"] for row in document["timeline"]]
    cells = [cell for row in table for cell in row.values()]
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells)


def test_a_text_that_looks_like_a_formula_is_defused_in_the_csv():
    _, _, repair = make_case()
    Repair.objects.filter(pk=repair.pk).update(note='=HYPERLINK("x")')

    package = package_of(texts=[f"repair-{repair.pk}"])

    table = csv.DictReader(io.StringIO(render(package, form="csv").decode()))
    assert [row["text"] for row in table if row["text"]] == ['\'=HYPERLINK("x")']


def test_the_html_stands_by_itself_and_escapes_what_it_shows():
    _, _, repair = make_case()
    Repair.objects.filter(pk=repair.pk).update(note="<b>bold</b>")

    page = render(package_of(texts=[f"repair-{repair.pk}"]), form="html").decode()

    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert not any(word in page for word in ("<script", "src=", "href=", "url("))


def test_a_free_text_goes_only_where_its_owner_lets_it_through():
    _, _, repair = make_case()
    key = f"repair-{repair.pk}"

    kept, given = package_of(), package_of(texts=[key])

    assert not [row for row in kept.rows if row.source == "text"]
    [row] = [row for row in given.rows if row.source == "text"]
    assert dict(row.told)["text"] == "[withheld] swapped it; see [withheld]"
    assert kept.left_out["free texts"] == given.left_out["free texts"] + 1


def test_a_case_that_nobody_named_is_refused():
    with pytest.raises(PackageRefused, match="no incident and no repair names case 'nosuch'"):
        gather("nosuch", now=NOW)


def test_a_text_that_is_none_of_the_case_is_refused():
    make_case()

    with pytest.raises(PackageRefused, match="'repair-0'"):
        package_of(texts=["repair-0"])


# --- the allow-list ------------------------------------------------------------------------------


def test_a_row_cannot_give_a_field_that_its_source_may_not():
    with pytest.raises(ValueError, match="fault gives \\['host'\\]"):
        Row(NOW, "M1", "I1", "fault", {"host": "node-a17"})


def test_no_field_of_the_allow_list_names_people_places_or_addresses():
    fields = {field for names in FIELDS.values() for field in names}

    forbidden = {"actor", "user", "technician", "host", "address", "site", "rack", "ticket", "team"}
    assert not fields & forbidden


@pytest.mark.parametrize(
    ("shape", "passes", "stays"),
    [
        (
            "version",
            ["96.00.74.00.01", "v2.14", "28.39.3004", "P20"],
            ["hunter2 x"],
        ),
        ("serial", ["1654920000123", "MT2334X00001", "S-12"], ["a b", "x@y", "../etc"]),
        ("component", ["gpu 3", "nic", "psu 1"], ["node-a17", "gpu alice", "gpu 3; rm"]),
        ("model", ["H100-SXM5", "PM9A3 3.84TB"], ["a@b", "node7.prod.internal"]),
    ],
)
def test_a_value_leaves_only_in_the_shape_of_its_field(shape, passes, stays):
    clean = getattr(Filter(Names()), shape)

    assert [clean(text) for text in passes] == passes
    assert [clean(text) for text in stays] == ["[withheld]"] * len(stays)


def test_a_value_that_names_the_house_stays_whatever_its_shape():
    clean = Filter(Names(secrets(["RACK17"])))

    assert clean.serial("rack17-4") == "[withheld]"
    assert clean.withheld == {"serial numbers": 1}


# --- made, written down, handed out --------------------------------------------------------------


def maker() -> User:
    user = make_user()
    names = ["add_supplierpackage", "view_supplierpackage", "view_incident"]
    user.user_permissions.add(*Permission.objects.filter(codename__in=names))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def _later() -> None:
    Clock.objects.update_or_create(
        pk=1, defaults={"mode": Clock.Mode.STEPPED, "virtual_time": NOW + 6 * HOUR}
    )


def test_each_package_leaves_its_digest_behind():
    make_case()
    user = maker()

    record, content = services.make_package(
        CASE, form="json", actor=user.username, user=user, now=NOW + 6 * HOUR
    )

    assert record.sha256 == hashlib.sha256(content).hexdigest()
    assert record.left_out == json.loads(content)["left_out"]
    with pytest.raises(AppendOnly):
        record.delete()


@pytest.mark.usefixtures("_later")
def test_the_page_shows_what_would_leave_and_hands_out_a_file():
    _, _, repair = make_case()
    browser = Client()
    browser.force_login(maker())

    listed = browser.get("/supplier/")
    shown = browser.get("/supplier/", {"case": CASE})
    given = browser.post(
        "/supplier/package", {"case": CASE, "form": "html", "texts": [f"repair-{repair.pk}"]}
    )

    assert CASE in listed.content.decode()
    text = shown.content.decode()
    assert "[withheld] swapped it; see [withheld]" in text
    assert (given.status_code, given["Content-Disposition"][:10]) == (200, "attachment")
    record = SupplierPackage.objects.get()
    assert record.texts == [f"repair-{repair.pk}"]
    assert hashlib.sha256(given.content).hexdigest() == record.sha256


@pytest.mark.usefixtures("_later")
def test_the_page_refuses_a_case_that_is_none():
    browser = Client()
    browser.force_login(maker())

    assert browser.get("/supplier/", {"case": "nosuch"}).status_code == 404
    refused = browser.post("/supplier/package", {"case": "nosuch", "form": "html"})
    assert refused.status_code == 400


@pytest.mark.usefixtures("_later")
def test_who_may_not_share_cases_sees_and_makes_none():
    make_case()
    browser, client = Client(), APIClient()
    user = make_user()
    browser.force_login(user)
    client.force_authenticate(user)

    assert browser.get("/supplier/", {"case": CASE}).status_code == 403
    assert browser.post("/supplier/package", {"case": CASE}).status_code == 403
    assert client.get("/api/v1/supplier-cases", {"case": CASE}).status_code == 403
    made = client.post("/api/v1/supplier-packages", {"case": CASE, "format": "json"})
    assert made.status_code == 403


@pytest.mark.usefixtures("_later")
def test_the_api_looks_through_a_case_makes_a_package_and_lists_what_was_made():
    make_case()
    client = APIClient()
    client.force_authenticate(maker())

    seen = client.get("/api/v1/supplier-cases", {"case": CASE}).json()
    made = client.post(
        "/api/v1/supplier-packages",
        {"case": CASE, "format": "csv", "texts": [seen["texts"][0]["key"]]},
        format="json",
    )
    listed = client.get("/api/v1/supplier-packages", {"case": CASE}).json()
    refused = client.post(
        "/api/v1/supplier-packages", {"case": "nosuch", "format": "csv"}, format="json"
    )

    assert made.status_code == 201
    content = made.json()["content"].encode()
    assert hashlib.sha256(content).hexdigest() == made.json()["sha256"]
    assert [one["sha256"] for one in listed["results"]] == [made.json()["sha256"]]
    assert (refused.status_code, refused.json()["code"]) == (400, "package_refused")


@pytest.mark.usefixtures("_later")
def test_the_command_writes_the_file_and_says_its_digest(tmp_path, capsys):
    make_case()
    out = tmp_path / "case.csv"

    call_command("supplier_package", CASE, format="csv", out=out)

    assert hashlib.sha256(out.read_bytes()).hexdigest() in capsys.readouterr().err
