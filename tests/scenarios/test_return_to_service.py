"""A machine's whole way, from a fault to work again, once over REST and once on the pages."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from fleet import clock, services, tasks
from fleet.lifecycle import State
from fleet.models import Gate, GateCheck, Incident, Machine, Repair, StateChange
from tests.factories import (
    NOW,
    make_fault_report,
    make_machine,
    make_reading,
    make_user,
    passing_value,
)
from tests.fleet.test_api import client_of

pytestmark = pytest.mark.django_db

API = "/api/v1"
SWAP = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-NEW"}
#: From work through diagnosis, repair, validation and review to work again.
WAY = [
    State.AWAITING_DIAGNOSIS,
    State.DIAGNOSING,
    State.AWAITING_REPAIR,
    State.REPAIRING,
    State.AWAITING_VALIDATION,
    State.VALIDATING,
    State.OBSERVING,
    State.AWAITING_RELEASE,
    State.IN_SERVICE,
]


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    """A machine at work, with a hard fault that has just been told; time is stepped."""
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)
    clock.set_mode("stepped", at=NOW)
    made = make_machine("gpu-1", components=parts("G-OLD"))
    make_machine("gpu-2", components=parts("G-LENT"))  # one to be lent to the checks
    report = make_fault_report(made, time=NOW, signature="xid.79", component="gpu 3")
    services.record([report], source="tests", key="k", now=NOW)
    tasks.follow_up()
    return made


def parts(serial: str) -> list[dict[str, str]]:
    gpu = {"kind": "gpu", "slot": "3", "serial": serial, "version": "96.1"}
    return [{"kind": "bmc", "version": "4.1"}, gpu]


def read_back(gate: Gate) -> None:
    """Let the machine tell what it runs, the new part too."""
    gpu = make_reading("gpu", "96.1", slot="3")
    services.read_back(gate, [make_reading("bmc", "4.1"), gpu], now=clock.now())


def way(machine: Machine) -> list[str]:
    """The states that a machine came through after it had left work."""
    moves = StateChange.objects.filter(machine=machine, at__gte=NOW).order_by("at", "pk")
    return [move.new_state for move in moves]


def step(hours: float) -> None:
    clock.step_to(clock.now() + timedelta(hours=hours))


def ask(client: Any, path: str, body: dict[str, Any], *, status: int = 200) -> dict[str, Any]:
    answer = client.post(f"{API}/{path}", body)
    assert answer.status_code == status, answer.content
    return answer.json()


def report_open_checks(client: Any, gate: Gate, *, stages: set[str]) -> None:
    """Claim and report each check of these stages, as an automation does."""
    for check in GateCheck.objects.filter(gate=gate, results=None, stage__in=stages):
        if "computed" in check.rule:
            continue
        claimed = ask(client, f"gate-checks/{check.pk}/claim", {})
        said = {"value": passing_value(check.rule), "unit": check.unit, "key": f"run-{check.pk}"}
        said |= {"token": claimed["claim_token"], "reference": "https://lab/logs/1"}
        ask(client, f"gate-checks/{check.pk}/report", said, status=201)


def test_a_machine_comes_back_over_rest(machine: Machine):
    technician, reviewer = client_of("technician"), client_of("reviewer")
    incident = Incident.objects.get(machine=machine)

    ask(technician, "machines/gpu-1/take-out", {"reason": "xid", "at_once": True}, status=201)
    ask(technician, "machines/gpu-1/take", {}, status=201)
    said = {"diagnosis": "fell off the bus", "cause": "hardware", "component": "gpu 3"}
    ask(technician, f"incidents/{incident.pk}/diagnose", {**said, "repair_kind": "gpu_swap"})
    order = {"machine": "gpu-1", "kind": "gpu_swap", "component": "gpu 3"}
    repair = ask(technician, "repairs", {**order, "incident": incident.pk}, status=201)
    step(1)
    ask(technician, f"repairs/{repair['id']}/start", {})
    step(2)
    ended = ask(technician, f"repairs/{repair['id']}/close", {"swaps": [SWAP]})
    gate = Gate.objects.get(pk=ended["gates"][0])
    read_back(gate)
    ask(technician, f"gates/{gate.pk}/partner", {})
    report_open_checks(technician, gate, stages={"firmware", "focused", "representative"})
    gate.refresh_from_db()
    clock.step_to(gate.observe_until)
    report_open_checks(technician, gate, stages={"observation"})
    read_back(gate)
    tasks.follow_gates()
    refused = technician.post(f"{API}/gates/{gate.pk}/review", {"is_accepted": True, "reason": "x"})
    ask(reviewer, f"gates/{gate.pk}/review", {"is_accepted": True, "reason": "logs read"})

    machine.refresh_from_db()
    assert refused.status_code == 403
    assert way(machine) == WAY
    assert machine.may_take_work
    assert machine.watch_until == clock.now() + timedelta(days=7)

    step(24)
    report = make_fault_report(machine, time=clock.now(), signature="xid.79")
    services.record([report], source="tests", key="again", now=clock.now())
    tasks.follow_up()
    charged = reviewer.get(f"{API}/repairs/{repair['id']}").json()
    assert charged["ineffective_since"] is not None


# --- on the pages -----------------------------------------------------------------------------


def browser_of(group: str) -> Client:
    user = make_user(is_staff=True)
    user.groups.set(Group.objects.filter(name=group))
    client = Client()
    client.force_login(user)
    return client


def post(client: Client, name: str, *args: object, **said: Any) -> None:
    answer = client.post(reverse(f"fleet:{name}", args=args), said)
    wrong = re.findall(r'class="cm-wrong">([^<]*)', answer.content.decode())
    assert answer.status_code == 302, (name, wrong)


def fill_in_open_checks(client: Client, gate: Gate, *, stages: set[str]) -> None:
    for check in GateCheck.objects.filter(gate=gate, results=None, stage__in=stages):
        if "computed" in check.rule:
            continue
        said = {"value": passing_value(check.rule), "unit": check.unit, "reference": "lab/1"}
        said = {f"check-{check.pk}-{name}": value for name, value in said.items()}
        post(client, "gate-report", gate.pk, check.pk, **said)


def test_a_machine_comes_back_on_the_pages(machine: Machine):
    technician, reviewer = browser_of("technician"), browser_of("reviewer")
    incident = Incident.objects.get(machine=machine)

    post(technician, "machine-take-out", "gpu-1", reason="xid", at_once="on")
    post(technician, "machine-take", "gpu-1")
    said = {"diagnosis": "fell off the bus", "cause": "hardware", "component": "gpu 3"}
    said |= {"repair_kind": "gpu_swap", "is_acted_on": "on"}
    post(
        technician,
        "incident-diagnose",
        incident.pk,
        **{f"diagnose-{name}": value for name, value in said.items()},
    )
    repair = Repair.objects.get(incident=incident)
    step(1)
    post(technician, "repair-start", repair.pk)
    step(2)
    rows = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "outcome": "repaired"}
    rows |= {f"form-0-{name}": value for name, value in SWAP.items()}
    post(technician, "repair-close", repair.pk, **rows)
    gate = Gate.objects.get(repair=repair)
    read_back(gate)
    post(technician, "gate-partner", gate.pk)
    fill_in_open_checks(technician, gate, stages={"firmware", "focused", "representative"})
    gate.refresh_from_db()
    clock.step_to(gate.observe_until)
    fill_in_open_checks(technician, gate, stages={"observation"})
    read_back(gate)
    tasks.follow_gates()
    post(reviewer, "gate-review", gate.pk, verdict="accept", reason="logs read")

    machine.refresh_from_db()
    assert way(machine) == WAY
    assert machine.may_take_work
    for name, key in (("machine", "gpu-1"), ("repair", repair.pk), ("gate", gate.pk)):
        assert reviewer.get(reverse(f"fleet:{name}", args=(key,))).status_code == 200
