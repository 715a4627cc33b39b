"""Did the fix work? Asked of rows, of recorded folders, on the page, over REST, by command."""

import csv
import functools
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.test import Client
from rest_framework.test import APIClient

from fleet import services as fleet
from fleet.lifecycle import State
from fleet.models import Change, Clock, Fault, FaultSignature, Machine, PartSwap
from rollouts import fixes
from rollouts.analysis.fixes.answer import FixVerdict
from rollouts.errors import CaseRefused, FixRefused, UnknownSignature
from rollouts.fixes.live import Question, ask
from rollouts.fixes.report import as_document, caveats
from rollouts.policies import load_policy
from tests.factories import (
    NOW,
    make_bundle,
    make_firmware_record,
    make_image,
    make_machine,
    make_machines,
    make_recovery_report,
    make_user,
)
from tests.recordings import ROOT, recording

DAY = timedelta(days=1)
LONG_AGO = NOW - 100 * DAY


@pytest.fixture
def _noon(db: None) -> None:
    Clock.objects.update_or_create(pk=1, defaults={"mode": Clock.Mode.STEPPED, "virtual_time": NOW})


# --- a fleet half of which was fixed -------------------------------------------------------------


def make_faults(
    machines: Sequence[Machine], per_machine: int, *, since: datetime, signature: str = "xid.119"
) -> None:
    """So many faults on each machine, spread from then until `NOW`, none at once."""
    code, _ = FaultSignature.objects.get_or_create(name=signature)
    step = (NOW - since) / (per_machine + 1)
    Fault.objects.bulk_create(
        Fault(
            machine=machine,
            time=since + step * (number + 1) - timedelta(minutes=17 * index),
            signature=code,
            severity="critical",
            source="test",
            source_key=f"{signature}/{machine.name}/{since}/{number}",
            received_at=NOW,
        )
        for index, machine in enumerate(machines)
        for number in range(per_machine)
    )


def make_change(machines: Iterable[Machine], *, at: datetime, **fields: Any) -> Change:
    told = {"source": "cm", "key": "one", "kind": "setting", "what": "fan mode", "new": "full"}
    names = [machine.name for machine in machines]
    return fleet.record_change(**told | fields, machines=names, at=at, now=NOW)


def half_fixed(*, fixed: int = 1, unfixed: int = 4) -> tuple[Change, list[Machine]]:
    """Forty machines; 60 days ago half of them were changed; so many faults on each since then."""
    machines = make_machines(40, now=LONG_AGO)
    change = make_change(machines[:20], at=NOW - 60 * DAY)
    make_faults(machines[:20], fixed, since=NOW - 60 * DAY)
    make_faults(machines[20:], unfixed, since=NOW - 60 * DAY)
    return change, machines


def answer_for(**asked: Any) -> fixes.Answered:
    return fixes.answered(ask(Question(**{"signatures": ("xid.119",), **asked}), now=NOW))


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_change_after_which_changed_machines_fail_less_than_others_is_reduced():
    change, _ = half_fixed()

    found = answer_for(change=change.pk)

    assert found.answer.words == "reduced"
    assert found.answer.concurrent.estimate == pytest.approx(0.25)
    assert found.told.since == NOW - 88 * DAY  # four weeks before the change
    assert found.told.fix == "setting fan mode: ? → full"


@pytest.mark.django_db
def test_only_time_in_service_is_exposure():
    change, machines = half_fixed()
    out = machines[0]
    Machine.objects.filter(pk=out.pk).update(state=State.RETIRED, may_take_work=False)
    out.state_changes.create(
        old_state=State.IN_SERVICE,
        new_state=State.RETIRED,
        trigger="retire",
        at=NOW - 30 * DAY,
        recorded_at=NOW,
        actor="test",
    )

    found = answer_for(change=change.pk).answer.concurrent

    assert found.fixed.days == pytest.approx(19 * 60 + 30)
    assert found.unfixed.days == pytest.approx(20 * 88 + 20 * 28)


@pytest.mark.django_db
def test_a_bundle_counts_from_when_every_part_of_the_machine_ran_it():
    bundle = make_bundle(images=[make_image("bmc", "2.0"), make_image("bios", "2.0")])
    machines = make_machines(3, now=LONG_AGO, versions={"bmc": "1.0", "bios": "1.0"})
    for machine, kinds in zip(machines, (("bmc", "bios"), ("bmc",), ()), strict=True):
        for number, kind in enumerate(kinds):
            since = NOW - (20 - number) * DAY
            make_firmware_record(machine, kind=kind, version="2.0", since=since)
    make_faults(machines, 1, since=NOW - 5 * DAY)

    history = ask(Question(signatures=("xid.119",), bundle=bundle.pk), now=NOW).history

    assert history.is_fixed.tolist() == [True, False, False]
    assert history.fixed_seconds[0] == timedelta(days=28).total_seconds()


@pytest.mark.django_db
def test_a_part_counts_from_the_swap_that_brought_it_in():
    old, new = make_machines(2, now=LONG_AGO)
    PartSwap.objects.create(
        machine=new,
        kind="gpu",
        slot="3",
        old_serial="A",
        new_serial="B",
        new_model="H100-B2",
        at=NOW - 10 * DAY,
        actor="test",
        recorded_at=NOW,
    )
    make_faults([old, new], 2, since=NOW - 30 * DAY)

    found = answer_for(part="gpu:H100-B2")

    assert (found.answer.fixed_machines, found.answer.unfixed_machines) == (1, 1)
    assert found.told.fix == "part gpu H100-B2"


@pytest.mark.django_db
def test_a_new_signature_that_rises_on_fixed_machines_is_named():
    change, machines = half_fixed()
    make_faults(machines[:20], 5, since=NOW - 60 * DAY, signature="xid.79")

    found = answer_for(change=change.pk)

    assert found.answer.words == "moved elsewhere"
    [shift] = found.answer.shifts
    assert (shift.name, shift.is_new, shift.is_proven) == ("xid.79", True, True)


@pytest.mark.django_db
def test_the_ways_in_which_work_came_back_are_counted_before_and_after():
    change, machines = half_fixed()
    for number, days in enumerate((70, 50)):
        at = NOW - days * DAY
        said = make_recovery_report(
            machines[0], time=at, recovered_at=at + timedelta(hours=1), recovery_seconds=3600.0
        )
        fleet.record([said], source="test", key=str(number), now=NOW)

    answer = answer_for(change=change.pk).answer

    assert (answer.mix_before.total, answer.mix_after.total) == (1, 1)
    assert answer.mix_after.lost_hours >= 1.0


@pytest.mark.django_db
def test_machines_of_other_sites_are_no_measure():
    machines = make_machines(10, now=LONG_AGO, site="north")
    make_machines(10, now=LONG_AGO, site="south")
    change = make_change(machines, at=NOW - 60 * DAY)
    make_faults(machines, 1, since=NOW - 60 * DAY)

    answer = answer_for(change=change.pk, since=NOW - 60 * DAY).answer

    assert answer.concurrent.estimate is None
    assert answer.verdict is FixVerdict.NOT_ENOUGH


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({}, FixRefused, "one of change, bundle and part; got none"),
        ({"change": 10**6}, FixRefused, "there is no change 1000000"),
        ({"bundle": 10**6}, FixRefused, "there is no bundle 1000000"),
        ({"part": "gpu"}, FixRefused, "'gpu' is no part; write kind:model"),
        ({"change": 1, "bundle": 1}, FixRefused, "got change, bundle"),
        ({"change": 1, "signatures": ("nosuch.*",)}, UnknownSignature, "'nosuch.*'"),
        ({"change": 1, "signatures": ()}, FixRefused, "by signatures .* or by one family"),
        ({"change": 1, "signatures": (), "family": "nosuch"}, UnknownSignature, "families: "),
    ],
)
def test_a_question_that_cannot_be_asked_says_what_is_accepted(asked, error, said):
    with pytest.raises(error, match=said):
        answer_for(**asked)


@pytest.mark.django_db
def test_a_window_that_is_too_long_or_empty_is_refused():
    change = make_change([make_machine(now=LONG_AGO)], at=NOW - 60 * DAY)

    with pytest.raises(FixRefused, match="1000 days long; 800 are read"):
        answer_for(change=change.pk, since=NOW - 1000 * DAY)
    with pytest.raises(FixRefused, match="its end has to lie after its begin"):
        answer_for(change=change.pk, since=NOW + DAY)


# --- what is said with it ------------------------------------------------------------------------


@pytest.mark.django_db
def test_every_answer_says_what_it_cannot_say():
    change, machines = half_fixed()
    make_faults(machines[:20], 2, since=NOW - 61 * DAY, signature="xid.31")

    said = " ".join(caveats(answer_for(change=change.pk)))

    for word in ("at random", "Regression to the mean", "Age and batch", "Calendar", "Detector"):
        assert word in said
    assert "one look" in said


@pytest.mark.django_db
def test_the_document_has_no_number_that_json_does_not_know():
    change, _ = half_fixed(fixed=0)

    document = as_document(answer_for(change=change.pk))

    assert json.loads(json.dumps(document, allow_nan=False))["concurrent"]["ratio"] == 0.0


# --- page, API, command --------------------------------------------------------------------------


def viewer() -> Any:
    user = make_user()
    user.groups.add(Group.objects.get(name="viewer"))
    return user


@pytest.mark.usefixtures("_noon")
def test_the_page_answers_with_figures_a_drawing_and_caveats():
    change, _ = half_fixed()
    browser = Client()
    browser.force_login(viewer())

    shown = browser.get("/fixes/", {"signature": "xid.119", "change": change.pk})

    text = shown.content.decode()
    assert shown.status_code == 200
    assert ">reduced</span>" in text
    assert 'class="cm-bar" data-tone="not_worse"' in text
    assert "Regression to the mean" in text


@pytest.mark.usefixtures("_noon")
def test_the_page_refuses_what_cannot_be_asked_with_the_reason():
    browser = Client()
    browser.force_login(viewer())

    assert browser.get("/fixes/").status_code == 200
    shown = browser.get("/fixes/", {"signature": "xid.*", "change": 10**6})

    assert shown.status_code == 400
    assert "there is no change 1000000" in shown.content.decode()


@pytest.mark.usefixtures("_noon")
def test_the_api_says_the_same_and_refuses_what_it_does_not_know():
    change, _ = half_fixed()
    client = APIClient()
    client.force_authenticate(viewer())

    told = client.get("/api/v1/fixes", {"signature": "xid.119", "change": change.pk})
    unknown = client.get("/api/v1/fixes", {"signatur": "xid.119", "change": change.pk})
    nothing = client.get("/api/v1/fixes", {"signature": "xid.119"})

    assert (told.status_code, told.json()["answer"]) == (200, "reduced")
    assert unknown.status_code == 400
    assert (nothing.status_code, nothing.json()["code"]) == (400, "fix_refused")


@pytest.mark.usefixtures("_noon")
def test_who_may_not_see_incidents_may_not_ask():
    client = APIClient()
    client.force_authenticate(make_user())

    assert client.get("/api/v1/fixes", {"signature": "xid.119", "change": 1}).status_code == 403


@pytest.mark.usefixtures("_noon")
def test_the_command_asks_of_rows_and_ends_by_its_verdict(capsys):
    change, _ = half_fixed()

    with pytest.raises(SystemExit) as ended:
        call_command("did_it_work", change=change.pk, signatures=["xid.119"], is_json=True)

    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "reduced"


# --- recorded folders ----------------------------------------------------------------------------


def write_case(folder: Path, machines: list[dict[str, str]], faults: list[dict[str, str]]) -> None:
    for name, rows in (("machines", machines), ("faults", faults)):
        with (folder / f"{name}.csv").open("w", newline="") as handle:
            table = csv.DictWriter(handle, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


def case_rows(fixed_at: str = "") -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    begin = datetime(2025, 1, 1, tzinfo=UTC)
    machines, faults = [], []
    for index in range(40):
        name, is_new = f"n{index:02}", index < 20
        row = {"machine": name, "group": "new" if is_new else "old"}
        row["in_service_from"] = (begin + is_new * DAY).isoformat()
        row["in_service_to"] = (begin + 100 * DAY).isoformat()
        machines.append(row | ({"fixed_at": fixed_at if is_new else ""} if fixed_at else {}))
        for number in range(1 if is_new else 4):
            at = begin + (2 + number * 20) * DAY + index * timedelta(hours=7)
            faults.append(
                {"machine": name, "time": at.isoformat(), "signature": "DBE", "severity": "major"}
            )
    return machines, faults


def test_a_folder_is_asked_by_the_groups_that_are_named(tmp_path):
    write_case(tmp_path, *case_rows())

    found = fixes.answered(
        fixes.read_history(tmp_path, signatures=["DBE"], arms=fixes.Arms(("new",), ("old",)))
    )

    assert found.answer.words == "reduced"
    assert found.told.is_recorded


def test_a_folder_s_own_times_of_the_fix_are_taken(tmp_path):
    write_case(tmp_path, *case_rows("2025-03-01T00:00:00Z"))

    history = fixes.read_history(
        tmp_path, signatures=["DBE"], arms=fixes.Arms(("new",), ("old",))
    ).history

    since = datetime(2025, 1, 2, tzinfo=UTC)
    wanted = (datetime(2025, 3, 1, tzinfo=UTC) - since).total_seconds()
    assert history.fixed_seconds[:20].tolist() == [wanted] * 20


def test_a_signature_that_the_folder_does_not_have_is_refused(tmp_path):
    write_case(tmp_path, *case_rows())

    with pytest.raises(CaseRefused, match=r"no row of faults\.csv matches 'DB'.*DBE"):
        fixes.read_history(tmp_path, signatures=["DB"])


def test_a_time_of_the_fix_without_zone_is_refused(tmp_path):
    write_case(tmp_path, *case_rows("2025-03-01"))

    with pytest.raises(CaseRefused, match="machine n00, column fixed_at: '2025-03-01'"):
        fixes.read_history(tmp_path, signatures=["DBE"])


def test_the_command_refuses_a_folder_with_what_is_asked_of_rows(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        call_command("did_it_work", str(tmp_path), change=3)

    assert ended.value.code == 2
    assert "--change says nothing of a folder" in capsys.readouterr().err


@functools.cache
def recorded(name: str, signature: str) -> fixes.Answered:
    folder = recording(name)
    document = load_policy(ROOT / "docs" / "cases" / f"{name}.json")
    return fixes.answered(fixes.read_history(folder, signatures=[signature], document=document))


@pytest.mark.parametrize(
    ("signature", "low", "high"), [("DBE", 0.02997, 0.05349), ("OTB", 0.01814, 0.05481)]
)
def test_the_new_batch_of_gpus_reduced_both_kinds_of_fault(signature, low, high):
    # The case's own answers, robust by machine over the whole window, overlap almost wholly.
    found = recorded("titan_gpu_a", signature)

    assert found.answer.words == "reduced"
    assert low < found.answer.concurrent.estimate < high
    assert found.answer.concurrent.high < 0.07


def test_the_new_batch_s_answer_says_its_age_and_regression_to_the_mean():
    said = " ".join(caveats(recorded("titan_gpu_a", "OTB")))

    assert "Regression to the mean" in said
    assert "there is no before to compare with" in said
    assert "421 days fixed, 1498 days unfixed" in said


@pytest.mark.parametrize("signature", ["*", "hardware:*"])
def test_two_clusters_of_one_type_claim_nothing(signature):
    answer = recorded("lanl_nodes_a", signature).answer

    assert answer.verdict is FixVerdict.NOT_ENOUGH


def test_two_clusters_have_the_interval_with_machines_as_the_unit():
    # The case's answers: exact Poisson .868 to .960, Poisson regression with robust errors below.
    found = recorded("lanl_nodes_a", "*").answer.concurrent

    assert found.estimate == pytest.approx(0.91284, abs=1e-5)
    assert (found.low, found.high) == pytest.approx((0.80992, 1.02885), abs=0.0015)
