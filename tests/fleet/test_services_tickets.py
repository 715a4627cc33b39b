"""Repairs travel both ways with a ticket system, over a real connection and a signed message."""

import http.server
import ipaddress
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from fleet import services, tasks
from fleet.adapters.webhook import Answer
from fleet.gate_state import why_not_review
from fleet.lifecycle import State
from fleet.messages import checked_id, signed_headers
from fleet.models import Machine, PartSwap, Repair, TicketLink, TicketReceipt
from tests.factories import NOW
from tests.fleet.repairs_world import HOUR, closed, make_broken, ordered, under_way

pytestmark = pytest.mark.django_db

KEY = b"s" * 32


class TicketSystem(http.server.ThreadingHTTPServer):
    """A ticket system on this host: keeps what it is told, and speaks for its technicians."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Door)
        self.told: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.status = 200
        self._number = 0

    def says(self, *, message_id: str = "", key: bytes = KEY, at: Any = None, **said: Any) -> Any:
        """Send a message, signed as it should be; return the response."""
        self._number += 1
        body = json.dumps(said).encode()
        signed = signed_headers(
            key, message_id=message_id or f"n{self._number}", at=at or timezone.now(), body=body
        )
        return Client().post(
            "/api/v1/tickets/dcim", body, content_type="application/json", headers=signed
        )


class _Door(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        given = {name.lower(): value for name, value in self.headers.items()}
        self.server.ids.append(checked_id(given, key=KEY, body=body, now=timezone.now()))
        if self.server.status == 200:
            self.server.told.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()
        if self.server.status == 200:
            answer = {"ticket": f"DC-{self.server.told[-1]['repair']}"}
            self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def dcim(monkeypatch) -> Iterator[TicketSystem]:
    server = TicketSystem()
    port = server.server_address[1]
    for name, value in {
        "TICKET_SYSTEMS": {"dcim": f"http://127.0.0.1:{port}/hook"},
        "TICKET_SECRETS": {"dcim": KEY},
        "WEBHOOK_HOSTS": ["127.0.0.1"],
        "WEBHOOK_PORTS": [port],
        "WEBHOOK_NETWORKS": [ipaddress.ip_network("127.0.0.0/8")],
    }.items():
        monkeypatch.setattr(settings, name, value, raising=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def due_again() -> None:
    TicketLink.objects.update(next_at=None)


# --- out ------------------------------------------------------------------------------------------


def test_a_ticket_system_is_told_of_each_step_once(dcim: TicketSystem):
    repair = ordered()
    tasks.tell_tickets()
    tasks.tell_tickets()
    services.start_repair(repair, actor="kim", now=NOW + HOUR)
    services.send_to_supplier(repair, supplier_case="RMA-7", actor="kim", now=NOW + 2 * HOUR)
    tasks.tell_tickets()

    first, second = dcim.told
    assert (first["state"], first["machine"]) == ("open", repair.machine.name)
    assert [step["kind"] for step in first["steps"]] == ["ordered"]
    assert (second["state"], second["supplier_case"]) == ("waiting_for_supplier", "RMA-7")
    assert [step["kind"] for step in second["steps"]] == ["started", "sent_away"]
    assert second["ticket"] == f"DC-{repair.pk}"  # as it answered the first time


def test_a_system_that_is_away_is_told_later_under_the_same_identifier(dcim: TicketSystem):
    dcim.status = 503
    repair = ordered()
    assert services.tell_tickets() == 0
    assert services.tell_tickets() == 0  # not before its turn

    link = TicketLink.objects.get(repair=repair)
    assert (link.attempts, link.last_error) == (1, "answered 503")
    dcim.status = 200
    due_again()

    assert services.tell_tickets() == 1
    assert len(set(dcim.ids)) == 1
    assert len(dcim.told) == 1


def test_waits_grow_up_to_an_hour(dcim: TicketSystem):
    repair = ordered()
    TicketLink.objects.filter(repair=repair).update(attempts=40)

    services.tell_tickets(post=lambda *_, **__: Answer(500))

    left = TicketLink.objects.get(repair=repair).next_at - timezone.now()
    assert timedelta(minutes=58) < left <= timedelta(minutes=61)


def test_an_address_outside_the_rules_is_not_called(dcim: TicketSystem, monkeypatch):
    monkeypatch.setattr(settings, "WEBHOOK_NETWORKS", [])
    repair = ordered()

    services.tell_tickets()

    assert dcim.ids == []
    link = TicketLink.objects.get(repair=repair)
    assert "in no network that may be called" in link.last_error


def test_a_system_that_does_not_answer_is_asked_once_in_a_run(dcim: TicketSystem):
    asked = []

    def away(*_: Any, **__: Any) -> Answer:
        asked.append(1)
        raise ConnectionRefusedError

    ordered()
    ordered(make_broken("b"))

    services.tell_tickets(post=away)

    assert len(asked) == 1


@pytest.mark.django_db(transaction=True)
def test_nobody_is_called_inside_a_transaction(dcim: TicketSystem):
    ordered()
    inside = []

    def look(*_: Any, **__: Any) -> Answer:
        inside.append(connection.in_atomic_block)
        return Answer(200)

    services.tell_tickets(post=look)

    assert inside == [False]


def test_open_repairs_become_known_to_a_system_that_is_new(dcim: TicketSystem, monkeypatch):
    systems = settings.TICKET_SYSTEMS
    monkeypatch.setattr(settings, "TICKET_SYSTEMS", {})
    repair = under_way()
    monkeypatch.setattr(settings, "TICKET_SYSTEMS", systems)

    services.tell_tickets()

    assert [told["repair"] for told in dcim.told] == [repair.pk]
    assert dcim.told[0]["state"] == "in_progress"


# --- in -------------------------------------------------------------------------------------------


def test_a_technician_can_do_a_whole_repair_from_the_ticket_system(dcim: TicketSystem):
    repair = ordered()
    services.tell_tickets()
    ticket = f"DC-{repair.pk}"
    swap = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-NEW"}

    answers = [
        dcim.says(ticket=ticket, state="assigned", technician="Sam"),
        dcim.says(ticket=ticket, state="in_progress"),
        dcim.says(ticket=ticket, state="waiting_for_supplier", supplier_case="RMA-7"),
        dcim.says(ticket=ticket, state="in_progress"),
        dcim.says(ticket=ticket, state="done", swaps=[swap]),
    ]

    assert [answer.status_code for answer in answers] == [200] * 5, answers[-1].content
    assert all(answer.json()["is_changed"] for answer in answers)
    repair.refresh_from_db()
    assert (repair.status, repair.technician_name) == ("closed", "Sam")
    assert (repair.supplier_case, repair.ticket) == ("RMA-7", f"dcim/{ticket}")
    assert PartSwap.objects.get(repair=repair).new_serial == "G-NEW"
    assert Machine.objects.get(pk=repair.machine_id).state == State.AWAITING_VALIDATION
    assert set(repair.events.values_list("actor", flat=True)) == {"kim", "ticket:dcim"}


@pytest.mark.parametrize(
    "named", ["gh-7", "CORP\\gh-7", "Grace Hopper", "HOPPER, Grace", "grace.hopper@example.com"]
)
def test_a_technician_whom_the_ticket_system_names_otherwise_does_not_review(
    dcim: TicketSystem, named: str
):
    repair = ordered()
    swap = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-NEW"}
    dcim.says(repair=repair.pk, state="in_progress", technician=named)
    dcim.says(repair=repair.pk, state="done", technician="Sam Poe", swaps=[swap])
    names = {"first_name": "Grace", "last_name": "Hopper", "email": "grace.hopper@example.com"}
    grace = User.objects.create_user("gh-7", **names)
    other = User.objects.create_user("gh-8", first_name="Grace", last_name="Kelly")
    gate = repair.gates.get()

    assert "did the repair" in why_not_review(gate, grace)
    assert why_not_review(gate, other) == ""


def test_a_system_is_not_told_what_it_said_itself(dcim: TicketSystem):
    repair = ordered()
    services.tell_tickets()

    dcim.says(repair=repair.pk, state="in_progress")
    services.tell_tickets()

    assert len(dcim.told) == 1


def test_our_own_echo_changes_nothing_however_late_it_comes(dcim: TicketSystem):
    repair = ordered()
    services.start_repair(repair, actor="kim", now=NOW + HOUR)
    services.tell_tickets()
    services.send_to_supplier(repair, supplier_case="RMA-7", actor="kim", now=NOW + 2 * HOUR)

    answer = dcim.says(repair=repair.pk, state="in_progress", caused_by=dcim.ids[0]).json()

    assert (answer["is_echo"], answer["is_changed"]) == (True, False)
    assert answer["state"] == "waiting_for_supplier"


def test_what_is_so_already_changes_nothing(dcim: TicketSystem):
    repair = under_way()

    answer = dcim.says(repair=repair.pk, state="in_progress").json()

    assert (answer["is_changed"], answer["state"]) == (False, "in_progress")


def test_a_message_that_comes_twice_is_answered_as_before_and_done_once(dcim: TicketSystem):
    repair = ordered()
    first = dcim.says(message_id="m1", repair=repair.pk, state="in_progress")
    services.send_to_supplier(repair, supplier_case="RMA-7", actor="kim", now=NOW + 2 * HOUR)

    second = dcim.says(message_id="m1", repair=repair.pk, state="in_progress")

    assert second.json() == {**first.json(), "is_repeated": True}
    repair.refresh_from_db()
    assert repair.status == "at_supplier"
    assert TicketReceipt.objects.count() == 1


def test_an_answer_names_the_ticket_of_the_repair_whoever_named_it(dcim: TicketSystem):
    repair = ordered()
    named = dcim.says(message_id="m1", repair=repair.pk, ticket="DC-9", state="in_progress")

    later = dcim.says(message_id="m2", repair=repair.pk, state="in_progress")

    assert [answer.json()["ticket"] for answer in (named, later)] == ["DC-9", "DC-9"]


def test_an_identifier_is_good_for_one_message(dcim: TicketSystem):
    repair = ordered()
    dcim.says(message_id="m1", repair=repair.pk, state="in_progress")

    answer = dcim.says(message_id="m1", repair=repair.pk, state="cancelled")

    assert (answer.status_code, answer.json()["code"]) == (409, "message_conflict")


@pytest.mark.parametrize(
    "forged",
    [
        {"key": b"x" * 32},
        {"at": timezone.now() - timedelta(minutes=6)},
        {"at": timezone.now() - timedelta(days=3)},
    ],
)
def test_a_message_that_is_forged_or_old_is_refused(dcim: TicketSystem, forged: dict[str, Any]):
    repair = ordered()

    answer = dcim.says(repair=repair.pk, state="cancelled", **forged)

    assert (answer.status_code, answer.json()["code"]) == (401, "signature_refused")
    repair.refresh_from_db()
    assert repair.status == "ordered"


def test_a_step_out_of_order_is_refused_with_what_is_possible(dcim: TicketSystem):
    repair = ordered()

    answer = dcim.says(repair=repair.pk, state="done", note="all well")

    assert (answer.status_code, answer.json()["code"]) == (409, "ticket_refused")
    accepted = "accepted now: assigned, in_progress, waiting_for_supplier, cancelled"
    assert accepted in answer.json()["detail"]
    assert not TicketReceipt.objects.exists()
    assert repair.events.count() == 1


def test_what_is_refused_leaves_nothing_half_done_and_may_come_again(dcim: TicketSystem):
    repair = under_way()
    swap = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-OLD"}

    refused = dcim.says(message_id="m1", ticket="T-1", repair=repair.pk, state="done", swaps=[swap])
    assert (refused.status_code, refused.json()["code"]) == (400, "repair_refused")
    repair.refresh_from_db()
    assert (repair.status, repair.ticket) == ("under_way", "")

    swap["new_serial"] = "G-NEW"
    again = dcim.says(message_id="m1", ticket="T-1", repair=repair.pk, state="done", swaps=[swap])
    assert again.status_code == 200


def test_a_second_end_with_other_parts_is_no_repetition(dcim: TicketSystem):
    repair = closed(under_way())
    same = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-NEW"}

    repeated = dcim.says(repair=repair.pk, state="done", swaps=[same])
    other = dcim.says(repair=repair.pk, state="done", swaps=[{**same, "new_serial": "G-X"}])

    assert (repeated.status_code, repeated.json()["is_changed"]) == (200, False)
    assert (other.status_code, other.json()["code"]) == (409, "ticket_refused")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"state": "in_progress"}, "invalid"),
        ({"state": "nonsense", "repair": 1}, "invalid"),
        ({"state": "in_progress", "repair": 1, "is_superuser": True}, "invalid"),
        ({"state": "in_progress", "repair": 987654}, "ticket_refused"),
        ({"state": "in_progress", "ticket": "never-heard"}, "ticket_refused"),
        ({"state": "in_progress", "ticket": "x" * 61}, "invalid"),
    ],
)
def test_a_message_about_nothing_is_refused(dcim: TicketSystem, said: dict[str, Any], code: str):
    answer = dcim.says(**said)

    assert answer.json()["code"] == code


def test_a_ticket_belongs_to_one_repair(dcim: TicketSystem):
    first, second = ordered(), ordered(make_broken("b"))
    dcim.says(repair=first.pk, ticket="T-1", state="in_progress")

    taken = dcim.says(repair=second.pk, ticket="T-1", state="in_progress")
    other = dcim.says(repair=first.pk, ticket="T-2", state="in_progress")

    assert "ticket T-1 is that of repair" in taken.json()["detail"]
    assert "has ticket T-1, not T-2" in other.json()["detail"]
    assert Repair.objects.get(pk=second.pk).status == "ordered"


def test_an_unknown_system_has_no_door(dcim: TicketSystem):
    answer = Client().post("/api/v1/tickets/other", b"{}", content_type="application/json")

    assert answer.status_code == 404


def test_a_message_without_a_signature_is_refused_before_it_is_read(dcim: TicketSystem):
    answer = Client().post("/api/v1/tickets/dcim", b"{not json", content_type="application/json")

    assert (answer.status_code, answer.json()["code"]) == (401, "signature_refused")
