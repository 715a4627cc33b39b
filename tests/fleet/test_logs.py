"""Logs are read as their makers mean them, and what says the same again is one fault."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command

from fleet.adapters import bgl_log, kernel_log, redfish_log
from fleet.adapters.bgl_log import Level, Line
from fleet.errors import AdapterFailed
from fleet.models import Fault, FaultSignature
from tests.factories import make_machine
from tests.recordings import recording

# --- Redfish -------------------------------------------------------------------------------------


def entry(message: str, **fields) -> dict:
    return {"Id": "7", "Created": "2026-03-02T12:00:00Z", "Message": message, **fields}


def only_fault(member: dict) -> dict:
    [report] = redfish_log.faults(redfish_log.entries({"Members": [member]}), machine="m1")
    return report.fields


def test_the_log_of_an_hpe_server_has_its_254_entries():
    document = json.loads(recording("redfish_event_log/hpe-dl360-iml.json").read_text())
    answers = json.loads(recording("redfish_event_log/answers.json").read_text())

    log = redfish_log.entries(document)

    assert len(log) == answers["entries"] == 254
    assert Counter(one.severity for one in log) == {"OK": 231, "Critical": 22, "Warning": 1}
    assert sum(one.count for one in log) == answers["sum_of_Oem.Hpe.Count"]
    assert Counter(one.template for one in log) == {
        words.strip(): count for words, count in answers["by_message_template"].items()
    }


def test_faults_of_that_log_are_in_the_catalogue_and_recoveries_are_none():
    document = json.loads(recording("redfish_event_log/hpe-dl360-iml.json").read_text())

    found = Counter(
        report.fields["signature"]
        for report in redfish_log.faults(redfish_log.entries(document), machine="m1")
    )

    # All 22 critical entries and the warning are faults, and 140 more are over or informational.
    assert found == {
        "host.dimm_not_genuine": 72,
        "thermal.over_limit": 32,
        "host.overheated": 31,
        "nic.port_down": 15,
        "nic.all_links_down": 4,
        "host.input_power_lost": 2,
        "disk.cache_restored": 2,
        "host.shutdown_called_off": 2,
        "psu.input_lost": 1,
        "psu.redundancy_lost": 1,
        "host.tpm_unbound": 1,
    }


@pytest.mark.django_db
def test_every_signature_of_the_table_is_in_the_catalogue():
    names = {one.signature for one in redfish_log.KNOWN if one.signature}

    assert names <= set(FaultSignature.objects.values_list("name", flat=True))


def test_a_repaired_entry_was_a_fault_and_names_its_part():
    hpe = {"Repaired": True, "Severity": "Repaired", "Count": 6, "Updated": "2026-03-02T12:28:00Z"}
    fault = only_fault(
        entry(
            "System Overheating (Temperature Sensor 1, Location Ambient, Temperature 43)",
            Severity="OK",
            Oem={"Hpe": hpe},
        )
    )

    assert (fault["signature"], fault["component"]) == ("thermal.over_limit", "sensor 1")
    assert fault["attributes"]["count"] == 6
    assert fault["attributes"]["updated"] == "2026-03-02T12:28:00+00:00"


def test_an_entry_without_a_severity_is_kept_as_unknown_and_takes_nothing_out():
    fault = only_fault(entry("[OEM-0031] Something 12 nobody knows", SensorType="OEM"))

    assert fault["signature"] == "redfish.oem-something-nobody-knows"
    assert fault["severity"] == "info"


def test_an_unknown_entry_that_is_critical_is_a_critical_fault_and_one_that_is_ok_is_none():
    assert only_fault(entry("Flux capacitor is out", Severity="Critical"))["severity"] == "critical"
    log = redfish_log.entries([entry("Flux capacitor is in", Severity="OK")])
    assert list(redfish_log.faults(log, machine="m1")) == []


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"Id": "IML"}, "Members"),
        ({"Members": [{"@odata.id": "/redfish/v1/…/1"}]}, "entry 1"),
        ({"Members": [entry("x", Created="2026-03-02T12:00:00")]}, "zone"),
        ({"Members": [entry("x", Created=None)]}, "None"),
    ],
)
def test_a_log_that_cannot_be_read_says_why(document, word):
    with pytest.raises(AdapterFailed, match=word):
        redfish_log.entries(document)


# --- Blue Gene/L ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "expected"), [("location", 9726), ("midplane", 1140), ("system", 141)]
)
def test_the_blue_gene_log_has_its_incidents_at_each_level(level, expected):
    with recording("bgl_fault_log/bgl_failures.log").open() as stream:
        lines = bgl_log.read(stream, zone=UTC)

        assert sum(1 for _ in bgl_log.incidents(lines, level=Level(level))) == expected


def test_a_log_is_read_in_memory_that_does_not_grow_with_its_length():
    # Every line is of another place: what was said is forgotten after 5 minutes all the same.
    def lines(count: int) -> Iterator[str]:
        begin = datetime(2005, 6, 5, tzinfo=UTC)
        for number in range(count):
            at = begin + timedelta(seconds=2 * number)
            yield f"{at:%Y-%m-%d-%H.%M.%S.%f} R{number:07}-M0-N0 RAS KERNEL FATAL rts error\n"

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            read = bgl_log.read(lines(count), zone=UTC)
            assert sum(1 for _ in bgl_log.faults(read, level=Level.LOCATION)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8_000) < 1.5 * peak(1_000)


def test_lines_exactly_five_minutes_apart_are_one_incident_and_a_second_more_are_two():
    begin = datetime(2005, 6, 5, tzinfo=UTC)

    def count(*seconds: int) -> int:
        lines = [
            Line(begin + timedelta(seconds=one), "R0-M0-N0", "KERNEL", "FATAL", "x")
            for one in seconds
        ]
        return sum(1 for _ in bgl_log.incidents(lines, level=Level.LOCATION))

    assert (count(0, 300), count(0, 301), count(0, 300, 600)) == (1, 2, 1)


@pytest.mark.parametrize(
    "text", ["hello", "2005-06-05-01.55.06.697467 R11", "2005-13-05-01.55.06 a"]
)
def test_a_line_of_another_format_is_refused_with_its_number(text):
    with pytest.raises(AdapterFailed, match="line 1"):
        list(bgl_log.read([text], zone=UTC))


# --- kernel --------------------------------------------------------------------------------------


def test_a_kernel_log_has_its_five_xid_lines():
    clocks = kernel_log.Clocks(ZoneInfo("UTC"))
    with recording("xid_catalogue/dmesg_xid119_xe9680.log").open() as stream:
        found = list(kernel_log.faults(stream, machine="m1", clocks=clocks))

    assert [one.fields["signature"] for one in found] == ["xid.119"] * 5
    assert found[0].fields["component"] == "gpu 0000:9b:00"
    assert found[0].fields["time"] == datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC)
    assert found[0].fields["attributes"]["name"] == "nvidia-smi"


@pytest.mark.parametrize(
    ("line", "signature", "at"),
    [
        (
            "[  120.500000] nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 30 LTSSM",
            "nvswitch.sxid",
            datetime(2026, 3, 2, 12, 2, 0, 500000, tzinfo=UTC),
        ),
        (
            "2026-03-02T13:02:00+0100 n7 kernel: SXid (PCI:0000:c3:00.0): 12028, Non-fatal, Link 3",
            "nvswitch.sxid_nonfatal",
            datetime(2026, 3, 2, 12, 2, tzinfo=UTC),
        ),
        (
            "2026-03-02T12:02:00.5Z n7 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', x",
            "xid.79",
            datetime(2026, 3, 2, 12, 2, 0, 500000, tzinfo=UTC),
        ),
    ],
)
def test_other_time_stamps_and_switch_errors_are_read(line, signature, at):
    clocks = kernel_log.Clocks(UTC, booted_at=datetime(2026, 3, 2, 12, tzinfo=UTC))

    [found] = kernel_log.faults([line], machine="m1", clocks=clocks)

    assert (found.fields["signature"], found.fields["time"]) == (signature, at)


def test_seconds_since_boot_without_the_boot_are_refused():
    line = "[  120.5] NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=x, GPU has fallen off the bus."

    with pytest.raises(AdapterFailed, match="line 1"):
        list(kernel_log.faults([line], machine="m1", clocks=kernel_log.Clocks(UTC)))


# --- the command ---------------------------------------------------------------------------------


def run(*arguments: object) -> str:
    out = StringIO()
    call_command("import_log", *(str(one) for one in arguments), stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_log_is_taken_in_once_however_often_it_is_read():
    make_machine("xe9680")
    path = recording("xid_catalogue/dmesg_xid119_xe9680.log")
    arguments = ("--format", "kernel", "--machine", "xe9680", "--zone", "Europe/Oslo", path)

    assert "5 recorded" in run(*arguments)
    run(*arguments)

    assert Fault.objects.count() == 5
    assert Fault.objects.first().time == datetime(2025, 2, 23, 15, 24, 18, tzinfo=UTC)


@pytest.mark.django_db
def test_a_dry_run_counts_and_records_nothing(tmp_path):
    make_machine("m1")
    path = tmp_path / "log.json"
    path.write_text(json.dumps([entry("All links are down in adapter X in slot 3")]))

    said = run("--format", "redfish", "--machine", "m1", "--dry-run", path)

    assert "nic.all_links_down" in said
    assert not Fault.objects.exists()


@pytest.mark.django_db
def test_what_cannot_be_taken_is_refused_with_its_reason(tmp_path):
    path = tmp_path / "bgl.log"
    path.write_text("2005-06-05-01.55.06.697467 R11-M0 RAS KERNEL FATAL rts internal error\n")

    with pytest.raises(CommandError, match="no machine has that name"):
        run("--format", "kernel", "--machine", "nobody", path)
    with pytest.raises(CommandError, match="1 refused: 1 because of machine"):
        run("--format", "bgl", path)
    make_machine("m1")
    with pytest.raises(CommandError, match="is no JSON"):
        run("--format", "redfish", "--machine", "m1", path)
    with pytest.raises(CommandError, match="is no known zone"):
        run("--format", "bgl", "--zone", "Nowhere", path)
