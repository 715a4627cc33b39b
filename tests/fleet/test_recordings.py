"""Recorded faults and repairs as history: the public LANL nodes, and what odd rows become."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import Q

from fleet import capacity, queues, services
from fleet.errors import ImportRefused
from fleet.imports import read_outages
from fleet.models import Fault, Machine, Repair, StateChange
from tests.factories import NOW, make_machine
from tests.recordings import recording

MACHINES = """\
machine,group,purpose,in_service_from,in_service_to
n1,rack-1,compute,2003-01-01T00:00:00Z,2004-01-01T00:00:00Z
n2,rack-1,compute,2003-01-01T00:00:00Z,
"""
FAULTS = """\
machine,time,signature,severity
n1,2003-02-01T00:00:00Z,hardware:cpu,critical
n1,2003-02-01T02:00:00Z,hardware:fan,major
n2,2003-03-01T00:00:00Z,software:os,minor
"""
RECOVERIES = """\
machine,time,recovered_at,path,recovery_seconds
n1,2003-02-01T00:00:00Z,2003-02-01T06:00:00Z,hardware,21600
n1,2003-02-01T02:00:00Z,2003-02-01T08:00:00Z,hardware,21600
n2,2003-03-01T00:00:00Z,2003-03-01T01:00:00Z,software,3600
"""


def folder(tmp_path: Path, **files: str) -> Path:
    for name, text in (
        {"machines": MACHINES, "faults": FAULTS, "recoveries": RECOVERIES} | files
    ).items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def taken_in(path: Path) -> services.RecordingResult:
    recording = read_outages(path, platform="old")
    return services.import_outages(recording, now=NOW, vouched_by="kim")


@pytest.mark.django_db
def test_an_outage_is_one_stay_in_repair_and_its_start_and_end_are_all_that_is_said(tmp_path: Path):
    taken_in(folder(tmp_path))

    changes = StateChange.objects.filter(machine__name="n2").order_by("pk")
    assert [(one.new_state, one.at, one.trigger) for one in changes] == [
        ("in_service", datetime(2003, 1, 1, tzinfo=UTC), "vouch"),
        ("repairing", datetime(2003, 3, 1, tzinfo=UTC), "recorded"),
        ("in_service", datetime(2003, 3, 1, 1, tzinfo=UTC), "recorded"),
    ]
    assert {one.gate for one in changes} == {"", "imported: vouched for by kim"}
    assert Machine.objects.get(name="n2").state == "in_service"
    assert Machine.objects.get(name="n2").labels["recording"].startswith("recording:")


@pytest.mark.django_db
def test_a_machine_that_the_recording_saw_leave_takes_no_work_today(tmp_path: Path):
    taken_in(folder(tmp_path))

    gone = Machine.objects.get(name="n1")

    assert (gone.state, gone.may_take_work) == ("retired", False)
    assert gone.entered_at == datetime(2004, 1, 1, tzinfo=UTC)


@pytest.mark.django_db
def test_outages_that_overlap_are_one_time_out_and_two_repairs_and_are_told(tmp_path: Path):
    result = taken_in(folder(tmp_path))

    [stay] = [
        one
        for one in capacity.stays_of(Machine.objects.get(name="n1"), until=NOW)
        if one.state == "repairing"
    ]
    assert stay.hours(now=NOW) == 8.0
    assert Repair.objects.filter(machine__name="n1").count() == 2
    assert result.joined == 1
    assert any("line 3: n1 was out already" in note for note in result.notes)


@pytest.mark.django_db
def test_a_second_import_changes_nothing(tmp_path: Path):
    path = folder(tmp_path)
    taken_in(path)
    before = (StateChange.objects.count(), Repair.objects.count(), Fault.objects.count())

    again = taken_in(path)

    assert (StateChange.objects.count(), Repair.objects.count(), Fault.objects.count()) == before
    assert (again.machines, again.faults, again.outages) == (0, 0, 0)
    assert (again.known_machines, again.known_faults, again.known_outages) == (2, 3, 3)


@pytest.mark.django_db
def test_files_that_say_otherwise_than_before_are_refused_whole(tmp_path: Path):
    path = folder(tmp_path)
    taken_in(path)
    folder(path, recoveries=RECOVERIES.replace("03-01T01:00", "03-01T05:00"))

    with pytest.raises(ImportRefused, match="records are never rewritten"):
        taken_in(path)


@pytest.mark.django_db
def test_a_machine_that_lives_here_gets_no_past_of_somebody_elses(tmp_path: Path):
    make_machine("n2")

    with pytest.raises(ImportRefused, match="'n2' is registered already"):
        taken_in(folder(tmp_path))
    assert not Machine.objects.filter(name="n1").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("faults", "critical", "fatal", "column severity: 'fatal'; accepted: info, minor, major"),
        ("recoveries", "03-01T01:00:00Z", "02-01T01:00:00Z", "column recovered_at"),
        ("recoveries", ",3600", ",-5", "column recovery_seconds: '-5'"),
        ("machines", "2004-01-01", "2002-01-01", "column in_service_to"),
        ("faults", "2003-03-01T00:00:00Z", "2003-03-01T00:00:00", "with zone"),
        ("machines", "machine,group", "machines,group", "column machine: stands there 0 times"),
    ],
)
def test_a_row_that_cannot_be_read_names_its_place(
    tmp_path: Path, file: str, old: str, new: str, said: str
):
    text = {"machines": MACHINES, "faults": FAULTS, "recoveries": RECOVERIES}[file]
    assert old in text

    with pytest.raises(ImportRefused, match=said):
        read_outages(folder(tmp_path, **{file: text.replace(old, new)}), platform="old")


def test_rows_of_unknown_machines_are_left_out_and_told(tmp_path: Path):
    extra = "x9,2003-03-01T00:00:00Z,2003-03-01T01:00:00Z,software,3600\n"

    recording = read_outages(folder(tmp_path, recoveries=RECOVERIES + extra), platform="old")

    assert len(recording.outages) == 3
    assert recording.notes == (
        "recoveries.csv, line 5: left out, machines.csv does not describe 'x9'",
    )


@pytest.mark.django_db
def test_a_refusal_of_the_command_says_what_is_accepted(tmp_path: Path):
    path = folder(tmp_path, faults=FAULTS.replace("critical", "fatal"))

    with pytest.raises(CommandError, match="accepted: info, minor, major, critical"):
        call_command("import_recoveries", path, vouched_by="kim", platform="old")


@pytest.mark.django_db
def test_the_lanl_nodes_repair_as_fast_as_their_answers_say(capsys: pytest.CaptureFixture[str]):
    path = recording("lanl_nodes_a")
    answers = json.loads((path / "answers.json").read_text())
    means = answers["comparisons"]["system-19 over system-18"]["repair_restricted_mean_hours"]
    start, end = (datetime.fromisoformat(f"{text}+00:00") for text in answers["window"])

    call_command("import_recoveries", path, vouched_by="kim", platform="lanl", start=start, end=end)

    told = capsys.readouterr().out
    assert "machines: 2048 registered" in told
    assert "faults: 7281 appended" in told
    assert "repairs: 7281 appended" in told
    assert "19 overlap another" in told
    assert (
        told.count("is told to have been out for")
        == answers["negative_or_mismatched_downtime_rows"]
    )
    for system in ("18", "19"):
        pool = Q(pool=f"system-{system}")
        hours = list(capacity.repair_hours(start=start, end=end, machines=pool))
        seen = queues.figures("repairing", ended=hours, horizon_hours=answers["tau_hours"])
        # By start and end; the answers take the source's own down time, which differs in 4 rows.
        assert seen.mean_hours == pytest.approx(means[system], abs=0.0005)
        assert seen.median_hours == pytest.approx(means["median_hours"][system])
        mean = sum(hours) / len(hours)
        assert mean == pytest.approx(means["mean_hours_unrestricted"][system], abs=0.001)
        # Time in state, from the changes of state: overlapping outages are one stay (2 and 4 rows).
        stays = capacity.stay_hours(["repairing"], start=start, end=end, machines=pool)
        state = queues.figures("repairing", ended=stays["repairing"], horizon_hours=24.0)
        assert state.median_hours == pytest.approx(means["median_hours"][system])
        assert state.mean_hours == pytest.approx(means[system], abs=0.01)
        assert 0 < len(hours) - state.ended <= 4
    assert sum(answers["by_group_and_cause"]["system-18"].values()) == 3270
    assert (
        Repair.objects.filter(
            machine__pool="system-18", started_at__gte=start, started_at__lt=end
        ).count()
        == 3270
    )
