"""The technicians' pages; every form works without a script."""

from io import BytesIO

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from fleet.lifecycle import State
from fleet.models import Evidence, Machine, Repair
from tests.factories import make_user
from tests.fleet.repairs_world import closed, make_broken, ordered, under_way
from tests.rollouts.pages import client_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)
    return tmp_path


def show(client: Client, name: str, *args: object, answer: int = 200, **query: str) -> str:
    response = client.get(reverse(f"fleet:{name}", args=args), query)
    assert response.status_code == answer
    return response.content.decode()


def file(name: str = "r4.log", content: bytes = b"passed\n") -> BytesIO:
    made = BytesIO(content)
    made.name = name
    return made


def closing(*rows: dict[str, str], outcome: str = "repaired", **fields: object) -> dict:
    """What the form for the end of a repair sends."""
    data = {"outcome": outcome, "form-TOTAL_FORMS": len(rows), "form-INITIAL_FORMS": len(rows)}
    for number, row in enumerate(rows):
        data |= {f"form-{number}-{name}": value for name, value in row.items()}
    return {**data, **fields}


SWAP = {"kind": "gpu", "slot": "3", "old_serial": "G-OLD", "new_serial": "G-NEW"}


def test_a_technician_does_a_whole_repair_on_the_pages():
    make_broken("gpu-1")
    user = make_user("kim", is_staff=True)
    client = client_of("technician", user=user)

    assert 'value="gpu-1"' in show(client, "repair-new", machine="gpu-1")
    made = client.post(
        reverse("fleet:repair-new"),
        {"machine": "gpu-1", "kind": "gpu_swap", "component": "gpu 3"},
    )
    repair = Repair.objects.get()
    assert made.url == reverse("fleet:repair", args=(repair.pk,))
    assert "Begin the work" in show(client, "repair", repair.pk)
    client.post(reverse("fleet:repair-start", args=(repair.pk,)), {"start-note": "now"})
    client.post(
        reverse("fleet:repair-send-away", args=(repair.pk,)), {"away-supplier_case": "RMA-7"}
    )
    assert "It is back" in show(client, "repair", repair.pk)
    client.post(reverse("fleet:repair-start", args=(repair.pk,)))
    form = show(client, "repair-close", repair.pk)
    assert "G-OLD" in form  # as the inventory knows it
    assert 'value="G-OLD"' not in form  # it is read off the part
    ended = client.post(
        reverse("fleet:repair-close", args=(repair.pk,)), closing(SWAP, {}, files=[file()])
    )

    assert ended.status_code == 302
    page = show(client, "repair", repair.pk)
    assert "G-NEW" in page
    assert "r4.log" in page
    assert "End the repair" not in page
    repair.refresh_from_db()
    assert (repair.status, repair.technician) == ("closed", user)
    assert repair.machine.state == State.AWAITING_VALIDATION


def test_who_may_only_look_is_offered_nothing_to_do():
    repair = ordered()
    client = client_of("viewer")

    page = show(client, "repair", repair.pk)
    assert "Begin the work" not in page
    assert "Keep the file" not in page
    assert "Order a repair" not in show(client, "repairs")
    show(client, "repair-new", answer=403)
    show(client, "repair-close", repair.pk, answer=403)
    for step in ("start", "send-away", "cancel", "evidence"):
        address = reverse(f"fleet:repair-{step}", args=(repair.pk,))
        assert client.post(address).status_code == 403


def test_who_may_see_nothing_sees_no_repair():
    repair = ordered()

    assert client_of().get(reverse("fleet:repairs")).status_code == 403
    assert Client().get(reverse("fleet:repair", args=(repair.pk,))).status_code == 302


def test_the_list_shows_what_is_open_unless_more_is_asked_for():
    ordered(make_broken("gpu-1"))
    closed(under_way(make_broken("gpu-2")))
    client = client_of("viewer")

    page = show(client, "repairs")
    assert "gpu-1" in page
    assert "gpu-2" not in page
    assert "gpu-2" in show(client, "repairs", status="closed")
    assert "gpu-1" not in show(client, "repairs", status="", machine="gpu-2")


def test_a_status_that_does_not_exist_is_refused():
    response = client_of("viewer").get(reverse("fleet:repairs"), {"status": "opne"})

    assert response.status_code == 400


def test_a_list_goes_on_where_the_page_ends(monkeypatch):
    monkeypatch.setattr("fleet.views.lists.PAGE_SIZE", 1)
    for name in ("gpu-1", "gpu-2"):
        ordered(make_broken(name))
    client = client_of("viewer")

    response = client.get(reverse("fleet:repairs"))
    assert [repair.machine.name for repair in response.context["listed"]] == ["gpu-2"]
    rest = client.get(reverse("fleet:repairs") + response.context["more"])

    assert [repair.machine.name for repair in rest.context["listed"]] == ["gpu-1"]
    assert rest.context["more"] == ""


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**SWAP, "new_serial": ""}, "needed for a part that was swapped"),
        ({**SWAP, "kind": ""}, "needed for a part that was swapped"),
        ({**SWAP, "new_serial": "G-OLD"}, "the same as the old one"),
        ({**SWAP, "new_serial": "G" * 101}, "at most 100 characters"),
    ],
)
def test_a_row_that_cannot_be_is_shown_again_with_what_is_wrong(row, said: str):
    repair = under_way()
    client = client_of("technician")

    response = client.post(reverse("fleet:repair-close", args=(repair.pk,)), closing(row))

    assert response.status_code == 400
    assert said in response.content.decode()
    assert Repair.objects.get().status == "under_way"


def test_a_repair_does_not_end_without_the_parts_it_was_for():
    repair = under_way()

    response = client_of("technician").post(
        reverse("fleet:repair-close", args=(repair.pk,)),
        closing({"kind": "gpu", "slot": "3"}, files=[file()]),
    )

    assert response.status_code == 400
    assert "ends with the serials of each swapped part" in response.content.decode()
    assert not Evidence.objects.exists()


def test_more_rows_can_be_asked_for():
    repair = under_way()
    client = client_of("technician")

    assert show(client, "repair-close", repair.pk).count("-old_serial") < show(
        client, "repair-close", repair.pk, parts="8"
    ).count("-old_serial")
    show(client, "repair-close", repair.pk, parts="100000000000000000000")


def test_a_step_that_is_not_possible_says_what_is():
    repair = closed(under_way())

    response = client_of("technician").post(
        reverse("fleet:repair-cancel", args=(repair.pk,)), {"cancel-reason": "no"}
    )

    assert response.status_code == 409
    assert "possible: none, it is over" in response.content.decode()


def test_a_file_is_added_and_handed_out_as_an_attachment():
    repair = ordered()
    client = client_of("technician")

    added = client.post(
        reverse("fleet:repair-evidence", args=(repair.pk,)), {"evidence-file": file()}
    )
    kept = Evidence.objects.get()
    answer = client.get(reverse("fleet:evidence", args=(kept.pk,)))

    assert added.status_code == 302
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert b"".join(answer.streaming_content) == b"passed\n"
    assert client_of().get(reverse("fleet:evidence", args=(kept.pk,))).status_code == 403


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r4.exe", b"MZ", "files named .exe are not kept"),
        ("r4.png", b"<svg onload=alert(1)>", "does not begin as image/png does"),
    ],
)
def test_a_file_that_cannot_be_kept_is_told_in_words(name: str, content: bytes, said: str):
    repair = ordered()

    response = client_of("technician").post(
        reverse("fleet:repair-evidence", args=(repair.pk,)), {"evidence-file": file(name, content)}
    )

    assert response.status_code == 400
    assert said in response.content.decode()


def test_a_form_that_is_too_large_is_told_in_words_before_it_is_read(monkeypatch):
    monkeypatch.setattr(settings, "EVIDENCE_MOST_BYTES", 2**20)
    repair = ordered()

    response = client_of("technician").post(
        reverse("fleet:repair-evidence", args=(repair.pk,)),
        {"evidence-file": file(content=b"x" * (2 * 2**20))},
    )

    assert response.status_code == 413
    assert "larger than 1 MiB" in response.content.decode()


def test_forms_with_files_are_still_guarded_against_forgery():
    repair = ordered()
    user = make_user(is_staff=True)
    client_of("technician", user=user)
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)

    response = client.post(
        reverse("fleet:repair-evidence", args=(repair.pk,)), {"evidence-file": file()}
    )

    assert response.status_code == 403
    assert not Evidence.objects.exists()


def test_hostile_words_are_shown_as_words():
    make_broken("gpu-1")
    client = client_of("technician")
    client.post(
        reverse("fleet:repair-new"),
        {"machine": "gpu-1", "kind": "thermal", "note": "<script>alert(1)</script>"},
    )

    page = show(client, "repair", Repair.objects.get().pk)

    assert "<script>alert(1)" not in page
    assert Machine.objects.get().state == State.AWAITING_REPAIR
