"""Recorded version histories are taken in whole or not at all, and answer as they were recorded."""

import json
from collections import Counter
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from fleet import selectors
from fleet.firmware.history import past_rollouts, reversals
from fleet.models import FirmwareRecord, Machine
from tests import recordings
from tests.factories import make_machine

pytestmark = pytest.mark.django_db

HEADER = "machine,component,version,valid_from,valid_to\n"
FIRST, SECOND, THIRD = (f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3))


def run(path: Path, *options: str) -> str:
    out = StringIO()
    call_command("import_firmware", str(path), *options, stdout=out)
    return out.getvalue()


def versions_file(folder: Path, *rows: str) -> Path:
    path = folder / "version_history.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def told() -> list[tuple[str, str, str, str]]:
    rows = FirmwareRecord.objects.order_by("kind", "slot", "since")
    return [(row.kind, row.slot, row.version, row.since.strftime("%d")) for row in rows]


def test_an_interval_ends_with_the_next_one_or_with_nothing_known(tmp_path):
    make_machine("m1")
    path = versions_file(
        tmp_path,
        f"m1,bmc,4.1,{FIRST},{SECOND}",
        f"m1,bmc,4.2,{SECOND},",
        f"m1,nic:eth0,7,{FIRST},{SECOND}",
    )

    run(path)

    assert told() == [
        ("bmc", "", "4.1", "01"),
        ("bmc", "", "4.2", "02"),
        ("nic", "eth0", "7", "01"),
        ("nic", "eth0", "", "02"),
    ]


def test_importing_twice_appends_nothing(tmp_path):
    make_machine("m1")
    path = versions_file(tmp_path, f"m1,bmc,4.1,{FIRST},{SECOND}")
    run(path)

    said = run(path)

    assert "0 appended, 2 there already" in said
    assert len(told()) == 2


def test_a_later_file_goes_on_where_the_earlier_one_ended(tmp_path):
    make_machine("m1")
    run(versions_file(tmp_path, f"m1,bmc,4.1,{FIRST},"))

    run(versions_file(tmp_path, f"m1,bmc,4.1,{FIRST},{THIRD}", f"m1,bmc,4.2,{THIRD},"))

    assert [version for _, _, version, _ in told()] == ["4.1", "4.2"]


def test_a_file_that_contradicts_an_earlier_import_is_refused(tmp_path):
    make_machine("m1")
    run(versions_file(tmp_path, f"m1,bmc,4.1,{FIRST},{SECOND}", f"m1,bmc,4.2,{SECOND},"))

    with pytest.raises(CommandError, match=r"m1 bmc is 4\.3 at 2026-01-02.*recorded '4\.2'"):
        run(versions_file(tmp_path, f"m1,bmc,4.1,{FIRST},{SECOND}", f"m1,bmc,4.3,{SECOND},"))


def test_json_says_the_same_as_csv(tmp_path):
    path = tmp_path / "history.json"
    row = {"machine": "m1", "component": "bmc", "version": "4.1", "valid_from": FIRST}
    machine = {"machine": "m1", "model": "R640", "cluster": "gros", "site": "nancy", "cpu": "x"}
    path.write_text(json.dumps({"machines": [machine], "versions": [{**row, "valid_to": None}]}))

    run(tmp_path)

    assert told() == [("bmc", "", "4.1", "01")]
    made = Machine.objects.get(name="m1")
    assert (made.platform.name, made.pool, made.site) == ("R640", "gros", "nancy")
    assert made.labels == {"cpu": "x"}


def test_a_new_machine_waits_for_validation_unless_somebody_vouches_for_it(tmp_path):
    (tmp_path / "machines.csv").write_text("machine,platform\nm1,R640\n")
    versions_file(tmp_path, f"m1,bmc,4.1,{FIRST},")

    run(tmp_path)

    assert Machine.objects.get().state == "awaiting_validation"
    assert not Machine.objects.get().may_take_work


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("m1,bmc,4.1,2026-01-01T00:00:00,", "column valid_from: '2026-01-01T00:00:00'"),
        ("m1,bmc,4.1,2026-02-30T00:00:00Z,", "column valid_from: '2026-02-30T00:00:00Z'"),
        (f"m1,bmc,4.1,{SECOND},{FIRST}", f"column valid_to: '{FIRST}'; accepted: a time after"),
        (f"m1,bmc,,{FIRST},", "column version: ''"),
        (f"m1,{'k' * 41},1,{FIRST},", "column component"),
        (f"m9,bmc,4.1,{FIRST},", "column machine: 'm9' is not registered"),
        (f"m1,bmc,4.1,{FIRST}", "4 cells; accepted: 5"),
        ("m1,bmc,4.1,2126-01-01T00:00:00Z,", "lies in the future"),
        (f"m1,bios,2,{FIRST},", "lies before the end of the interval of version_history.csv, line"),
    ],
)
def test_a_slip_is_named_with_its_line_and_nothing_is_read(tmp_path, row, said):
    make_machine("m1")
    path = versions_file(tmp_path, f"m1,bios,1,{FIRST},", row)

    with pytest.raises(CommandError) as refused:
        run(path)

    assert "version_history.csv, line 3" in str(refused.value)
    assert said in str(refused.value)
    assert told() == []


def test_all_slips_are_told_at_once(tmp_path):
    path = versions_file(tmp_path, f"m1,bmc,,{FIRST},", f"m1,bmc,4,{SECOND},{FIRST}")

    with pytest.raises(CommandError) as refused:
        run(path)

    assert "line 2, column version" in str(refused.value)
    assert "line 3, column valid_to" in str(refused.value)


# --- a real one ------------------------------------------------------------------------------


@pytest.fixture
def recording(db):
    """Six years of 925 machines; the known answers are those of the recording's own README."""
    folder = recordings.recording("g5k_firmware_a")
    run(folder)
    return json.loads((folder / "answers.json").read_text())


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def counts(cluster: str, component: str, when: datetime) -> Counter:
    machines = Machine.objects.filter(pool=cluster).values_list("pk", flat=True)
    held = selectors.versions_now(list(machines), at=when)
    return Counter(own[component] for own in held.values() if component in own)


def test_six_years_of_a_real_fleet_are_found_again(recording):
    assert Machine.objects.count() == recording["machines"]
    assert FirmwareRecord.objects.exclude(version="").count() == recording["version_rows"]
    asked = [
        (dict(counts(q["cluster"], q["component"], at(q["date"]))), q["counts"])
        for q in recording["as_of"]
    ]
    assert len(asked) == 29
    assert [found for found, _ in asked] == [known for _, known in asked]

    changes = selectors.version_changes(kinds=["bios", "bmc"])
    waves = {
        (r.site, r.pool, r.kind, r.old, r.new): (r.machines, r.first, r.last, r.waves)
        for r in past_rollouts(changes)
    }
    found = {key: (*own[:3], len(own[3]), own[3][0].machines) for key, own in waves.items()}
    known = {
        (r["site"], r["cluster"], r["component"], r["from_version"], r["to_version"]): (
            r["machines"],
            at(r["first"]),
            at(r["last"]),
            r["waves"],
            r["first_wave"],
        )
        for r in recording["rollouts_of_8_or_more_machines"]
    }
    assert len(known) == 131
    assert found == known

    back = reversals(changes)
    assert len(back) == recording["rollbacks_count"] == 174
    assert len({one.machine for one in back}) == recording["rollback_machines"]
    told = {(r.machine, r.kind, r.kept, r.tried, r.at, r.back_at) for r in back}
    assert {(*r[:4], at(r[4]), at(r[5])) for r in recording["rollback_examples"]} <= told
