"""Recorded cases: what is read means what the files say, and every slip is named by its place."""

import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rollouts.cases import Case, read_case
from rollouts.errors import CaseRefused, PolicyRefused

MACHINES = """\
machine,arm,enrolled_at,left_at,rack,pre
b,canary,2026-01-01T00:00:00Z,,r1,3
a,control,2026-01-01T00:00:00Z,2026-03-01T00:00:00Z,r1,
d,control,2026-01-02T00:00:00Z,,r2,4.5
c,canary,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z,r2,1e1
x,spare,2026-01-01T00:00:00Z,,r9,
"""
FAULTS = """\
machine,time,signature,severity
b,2026-01-05T00:00:00Z,DBE,critical
a,2026-01-06T00:00:00+01:00,OTB,major
x,2026-01-07T00:00:00Z,DBE,critical
"""
OBSERVATIONS = """\
machine,start,end,in_service_seconds,throughput,workload
a,2026-01-05T00:00:00Z,2026-01-05T01:00:00Z,3600,10,bert
b,2026-01-05T00:00:00Z,2026-01-05T01:00:00Z,3600,,resnet
"""
SERVICE = """\
machine,start,end
a,2026-01-01T00:00:00Z,2026-01-10T00:00:00Z
a,2026-01-20T00:00:00Z,2026-03-01T00:00:00Z
b,2026-01-01T00:00:00Z,
c,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z
d,2026-01-02T00:00:00Z,2026-02-20T00:00:00Z
"""
RECOVERIES = """\
machine,time,recovered_at,path,recovery_seconds,repeated_work
a,2026-01-05T00:00:00Z,2026-01-05T00:10:00Z,continued,600,60
b,2026-01-05T00:00:00Z,2026-01-05T00:20:00Z,continued,,
b,2026-01-06T00:00:00Z,,job_lost,,
"""
ATTEMPTS = """\
machine,time,outcome
c,2026-01-04T00:00:00Z,succeeded
b,2026-01-03T00:00:00Z,timed_out
a,2026-01-03T00:00:00Z,succeeded
"""
FILES = {
    "machines": MACHINES,
    "service_intervals": SERVICE,
    "faults": FAULTS,
    "observations": OBSERVATIONS,
    "recoveries": RECOVERIES,
    "attempts": ATTEMPTS,
}
WINDOW = {"start": "2026-01-02T00:00:00Z", "end": "2026-02-01T00:00:00Z"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def read(folder: Path, **policy: object) -> Case:
    return read_case(folder, {"window": WINDOW, **policy})


def write(folder: Path, name: str, text: str | bytes) -> None:
    (folder / f"{name}.csv").write_bytes(text.encode() if isinstance(text, str) else text)


def refusal(folder: Path, **policy: object) -> str:
    with pytest.raises(CaseRefused) as caught:
        read(folder, **policy)
    return str(caught.value)


# --- what is read --------------------------------------------------------------------------


def test_machines_and_units_stand_in_order_of_name(folder):
    samples = read(folder).samples

    assert samples.machines.name == samples.units.name == ("a", "b", "c", "d")
    assert samples.units.is_canary.tolist() == [False, True, True, False]


def test_times_are_seconds_since_the_start_of_the_window(folder):
    samples = read(folder).samples

    assert samples.origin == datetime(2026, 1, 2, tzinfo=UTC)
    assert samples.machines.enrolled_seconds.tolist() == [-86400.0, -86400.0, -86400.0, 0.0]
    assert samples.machines.left_seconds.tolist() == [
        58 * 86400.0,
        math.inf,
        30 * 86400.0,
        math.inf,
    ]
    assert samples.faults.time_seconds.tolist() == [3 * 86400.0, 3 * 86400.0 + 23 * 3600]
    assert samples.window_seconds == 30 * 86400


def test_machines_of_other_groups_are_left_out_and_counted(folder):
    case = read(folder)

    assert case.left_out_machines == 1
    assert case.samples.faults.machine.tolist() == [1, 0]


def test_codes_do_not_depend_on_the_order_of_rows(folder):
    first = read(folder).samples
    head, *rows = FAULTS.splitlines()
    write(folder, "faults", "\n".join([head, *reversed(rows)]) + "\n")

    second = read(folder).samples

    assert first.faults.signatures == second.faults.signatures == ("DBE", "OTB")
    assert first.faults.signature.tolist() == second.faults.signature.tolist()[::-1]


def test_a_throughput_that_was_not_reported_is_unknown(folder):
    rows = read(folder).samples.observations

    assert rows.throughput[0] == 10
    assert math.isnan(rows.throughput[1])
    assert [rows.workloads[code] for code in rows.workload] == ["bert", "resnet"]


def test_a_recovery_without_an_end_is_open_and_one_without_seconds_takes_the_difference(folder):
    rows = read(folder).samples.recoveries

    assert rows.recovery_seconds[:2].tolist() == [600, 1200]
    assert np.isnan([rows.recovered_seconds[2], rows.recovery_seconds[2]]).all()
    assert rows.repeated_seconds[0] == 60


def test_attempts_are_those_of_canaries_in_order_of_time(folder):
    rows = read(folder).samples.attempts

    assert rows.machine.tolist() == [1, 2]
    assert [rows.outcomes[code] for code in rows.outcome] == ["timed_out", "succeeded"]


def test_an_interval_without_an_end_goes_on(folder):
    service = read(folder).samples.service

    assert service.end_seconds[service.machine == 1].tolist() == [math.inf]


def test_a_file_that_is_not_there_is_no_table_and_the_report_says_so(folder):
    (folder / "faults.csv").unlink()

    case = read(folder)

    assert case.samples.faults is None
    assert any("no faults.csv" in note for note in case.notes)


def test_a_file_that_no_guardrail_reads_is_not_opened(folder):
    write(folder, "recoveries", "job,when\n1,2\n")

    case = read(folder, guardrails=[{"metric": "faults"}])

    assert case.samples.recoveries is None


def test_a_file_with_only_a_header_is_an_empty_table(folder):
    write(folder, "faults", FAULTS.splitlines()[0] + "\n")

    assert read(folder).samples.faults.machine.size == 0


def test_columns_and_arms_may_have_other_names(folder):
    write(folder, "machines", MACHINES.replace(",arm,", ",group,").replace("canary", "new"))

    case = read(folder, columns={"machines": {"arm": "group"}}, arms={"canary": ["new"]})

    assert case.samples.units.is_canary.sum() == 2


def test_an_arm_may_be_several_values(folder):
    case = read(folder, arms={"canary": ["canary", "spare"]})

    assert case.samples.units.is_canary.sum() == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("r1", '"r1"'),
        lambda text: text.rstrip("\n"),
    ],
    ids=["BOM", "CRLF", "CR", "blank lines", "quotes", "no last newline"],
)
def test_spellings_of_the_same_table_read_alike(folder, change):
    plain = read(folder, strata=["rack"]).samples
    write(folder, "machines", change(MACHINES))

    other = read(folder, strata=["rack"]).samples

    assert other.machines.name == plain.machines.name
    assert other.units.stratum.tolist() == plain.units.stratum.tolist()


def test_a_quoted_cell_may_hold_lines_and_later_lines_keep_their_number(folder):
    write(
        folder,
        "faults",
        'machine,time,signature,severity\nb,2026-01-05T00:00:00Z,"DBE\ntwo",critical\n'
        "b,2026-01-06,DBE,critical\n",
    )

    assert "faults.csv, line 4, column time: '2026-01-06'" in refusal(folder)


def test_signatures_of_before_the_window_are_the_known_ones(folder):
    assert read(folder).samples.known_signatures is None

    case = read(folder, window={"start": "2026-01-05T12:00:00Z", "end": "2026-02-01T00:00:00Z"})

    assert case.samples.known_signatures == {"DBE"}


# --- units, strata, covariates -------------------------------------------------------------


def test_a_column_may_name_the_unit(folder):
    text = MACHINES.replace("c,canary", "c,control").replace("a,control", "a,canary")
    write(folder, "machines", text)

    samples = read(folder, unit="rack").samples

    assert samples.units.name == ("r1", "r2")
    assert samples.machines.unit.tolist() == [0, 0, 1, 1]
    assert samples.units.is_canary.tolist() == [True, False]


def test_machines_of_one_unit_are_of_one_arm(folder):
    text = refusal(folder, unit="rack")

    assert "machines.csv, column arm: a and b are of one unit but differ" in text


def test_strata_are_the_cells_of_their_columns(folder):
    units = read(folder, strata=["rack"]).samples.units

    assert units.stratum.tolist() == [0, 0, 1, 1]


def test_covariates_are_numbers_or_unknown(folder):
    units = read(folder, covariates={"throughput": "pre"}).samples.units

    assert units.covariates["throughput"][1:].tolist() == [3, 10, 4.5]
    assert math.isnan(units.covariates["throughput"][0])


def test_a_covariate_that_is_no_number_is_refused(folder):
    write(folder, "machines", MACHINES.replace("4.5", "nan"))

    text = refusal(folder, covariates={"throughput": "pre"})

    assert "machine d, column pre: 'nan'" in text


@pytest.mark.parametrize(
    "policy", [{"unit": "rak"}, {"strata": ["rak"]}, {"covariates": {"faults": "rak"}}]
)
def test_a_column_that_the_policy_names_and_the_file_lacks_is_refused(folder, policy):
    text = refusal(folder, **policy)

    assert "column rak: not there, but the policy names it (did you mean 'rack'?)" in text


# --- window --------------------------------------------------------------------------------


def test_the_default_window_is_the_common_span_of_both_arms(folder):
    write(
        folder,
        "machines",
        "machine,arm,enrolled_at,left_at\n"
        "a,canary,2026-01-01T00:00:00Z,2026-03-01T00:00:00Z\n"
        "b,canary,2026-01-03T00:00:00Z,2026-04-01T00:00:00Z\n"
        "c,control,2026-01-05T00:00:00Z,2026-02-01T00:00:00Z\n"
        "d,control,2026-01-04T00:00:00Z,2026-02-20T00:00:00Z\n",
    )

    samples = read_case(folder, {"guardrails": [{"metric": "install"}]}).samples

    assert samples.origin == datetime(2026, 1, 4, tzinfo=UTC)
    assert samples.window_seconds == 47 * 86400


def test_for_machines_still_there_the_recording_ends_with_its_last_row(folder):
    (folder / "service_intervals.csv").unlink()
    text = MACHINES.replace("2026-03-01T00:00:00Z", "").replace("2026-02-01T00:00:00Z", "")
    write(folder, "machines", text)

    samples = read_case(folder).samples

    assert samples.window_seconds == 5 * 86400  # 2026-01-01 to the open recovery of 01-06


def test_a_window_without_length_is_refused(folder):
    with pytest.raises(PolicyRefused, match="is not after its start 2026-01-02T00:00:00Z"):
        read(folder, window={"start": WINDOW["start"], "end": WINDOW["start"]})


@pytest.mark.parametrize("text", ["2026-01-01", "2026-01-01T00:00:00", "soon"])
def test_a_window_needs_times_with_a_zone(folder, text):
    with pytest.raises(PolicyRefused, match=f"window.start: '{text}'; accepted: an RFC 3339"):
        read(folder, window={"start": text})


def test_looks_are_spread_over_the_window_after_the_burn_in(folder):
    case = read(folder, window={**WINDOW, "looks": 4, "burn_in_hours": 24})

    days = case.looks_seconds / 86400
    assert days.tolist() == [1 + 29 * k / 4 for k in (1, 2, 3, 4)]
    assert case.samples.units.clock_start_seconds.tolist() == [86400.0] * 4


def test_a_short_recording_is_judged_on_what_it_has_and_says_so(folder):
    case = read(folder, window={"start": "2026-01-05T00:00:00Z", "end": "2026-01-05T12:00:00Z"})

    assert (case.policy.burn_in_hours, case.policy.min_exposure_hours) == (0, 12)
    assert any("judged on what it has" in caveat for caveat in case.caveats)


def test_a_least_observation_that_the_policy_names_is_kept(folder):
    window = {"start": "2026-01-05T00:00:00Z", "end": "2026-01-05T12:00:00Z"}

    case = read(folder, window=window, min_exposure_hours=24)

    assert case.policy.min_exposure_hours == 24


def test_a_short_suite_is_judged_by_all_the_workloads_that_both_arms_ran(folder):
    write(
        folder,
        "observations",
        OBSERVATIONS + "b,2026-01-05T02:00:00Z,2026-01-05T03:00:00Z,3600,9,bert\n",
    )
    window = {"start": "2026-01-05T00:00:00Z", "end": "2026-01-05T12:00:00Z"}

    case = read(folder, window=window, guardrails=[{"metric": "throughput"}])

    assert case.policy.guardrails[0].workloads == ("bert",)


def test_a_suite_without_a_list_waits_for_all_workloads_whatever_the_least_observation(folder):
    window = {"start": "2026-01-05T00:00:00Z", "end": "2026-01-05T12:00:00Z"}
    write(folder, "observations", OBSERVATIONS.replace("3600,,resnet", "3600,9,bert"))

    case = read(
        folder,
        window=window,
        guardrails=[{"metric": "throughput"}],
        min_exposure_hours=0,
        burn_in_hours=0,
    )

    assert case.policy.guardrails[0].workloads == ("bert",)


def test_a_long_recording_takes_workloads_as_they_come(folder):
    case = read(folder, guardrails=[{"metric": "throughput"}])

    assert case.policy.guardrails[0].workloads == ()


def test_a_burn_in_as_long_as_the_window_is_refused(folder):
    with pytest.raises(PolicyRefused, match="burn_in_hours: 720"):
        read(folder, burn_in_hours=720)


# --- bad input -----------------------------------------------------------------------------

GOOD_FAULT = "b,2026-01-05T00:00:00Z,DBE,critical"
GOOD_REPORT = "b,2026-01-05T00:00:00Z,2026-01-05T01:00:00Z,3600,,resnet"
BAD_ROWS = [
    ("faults", "b,2026-01-05T00:00:00,DBE,critical", "time_without_zone", "time"),
    ("faults", "b,2026-01-05,DBE,critical", "bad_time", "time"),
    ("faults", "b,2026-02-30T00:00:00Z,DBE,critical", "bad_time", "time"),
    ("faults", "b,1767571200,DBE,critical", "bad_time", "time"),
    ("faults", "b,2026-W01-1T00:00:00Z,DBE,critical", "bad_time", "time"),
    ("faults", "b,0001-01-01T00:00:00+14:00,DBE,critical", "bad_time", "time"),
    ("faults", "b,9999-12-31T23:59:59.9999999Z,DBE,critical", "bad_time", "time"),
    ("faults", "b,2200-01-01T00:00:00Z,DBE,critical", "bad_time", "time"),
    ("faults", "b,,DBE,critical", "missing_value", "time"),
    ("faults", "b,2026-01-05T00:00:00Z,,critical", "missing_value", "signature"),
    ("faults", "nobody,2026-01-05T00:00:00Z,DBE,critical", "unknown_machine", "machine"),
    ("faults", "b ,2026-01-05T00:00:00Z,DBE,critical", "unknown_machine", "machine"),
    ("faults", ",2026-01-05T00:00:00Z,DBE,critical", "missing_value", "machine"),
    ("faults", "b,2026-01-05T00:00:00Z,DBE", "wrong_number_of_fields", "(all)"),
    ("faults", "b,2026-01-05T00:00:00Z,DBE,critical,1", "wrong_number_of_fields", "(all)"),
    ("faults", f"{GOOD_FAULT}\n{GOOD_FAULT}", "duplicate", "(all)"),
    ("observations", GOOD_REPORT.replace("3600", "-1"), "negative_exposure", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace("3600", "nan"), "not_a_number", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace("3600", "inf"), "not_a_number", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace("3600", "1e999"), "not_a_number", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace("3600", "1e101"), "too_large", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace(",,", ",1e308,"), "too_large", "throughput"),
    ("observations", GOOD_REPORT.replace("3600", "3_600"), "not_a_number", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace("3600", ""), "missing_value", "in_service_seconds"),
    ("observations", GOOD_REPORT.replace(",,", ",NaN,"), "not_a_number", "throughput"),
    ("observations", GOOD_REPORT.replace(",,", ",-3,"), "negative_value", "throughput"),
    ("observations", GOOD_REPORT.replace("T01", "T00").replace("05T00:00:00Z,3", "04T00:00:00Z,3"),
     "end_before_start", "end"),
    ("observations", f"{GOOD_REPORT}\n{GOOD_REPORT.replace('resnet', 'x')}", "overlap", "start"),
    ("service_intervals", "b,2026-01-01T00:00:00Z,\nb,2026-01-03T00:00:00Z,2026-01-04T00:00:00Z",
     "overlap", "start"),
    ("recoveries", "b,2026-01-05T00:00:00Z,2026-01-04T00:00:00Z,continued,,", "end_before_start",
     "recovered_at"),
    ("recoveries", "b,2026-01-05T00:00:00Z,,continued,-5,", "negative_value", "recovery_seconds"),
    ("attempts", "b,2026-01-03T00:00:00Z,success", "unknown_outcome", "outcome"),
    ("machines", "b,canary,2026-01-05T00:00:00Z,2026-01-01T00:00:00Z,r1,3", "end_before_start",
     "left_at"),
    ("machines", "b,canary,,,r1,3", "missing_value", "enrolled_at"),
    ("machines", "b,,2026-01-01T00:00:00Z,,r1,3", "missing_value", "arm"),
    ("machines", "b,canary,2026-01-01T00:00:00Z,9999-12-31T23:59:59Z,r1,3", "bad_time", "left_at"),
    ("machines", "b,canary,2026-01-01T00:00:00Z,,r1,3\nb,control,2026-01-01T00:00:00Z,,r1,3",
     "duplicate", "machine"),
]  # fmt: skip


def with_bad(folder: Path, name: str, row: str) -> int:
    """Put the row (one or two lines) in place of the file's row of machine b; its last line."""
    lines = [line for line in FILES[name].splitlines() if not line.startswith("b,")]
    write(folder, name, "\n".join([*lines, row]) + "\n")
    return len(lines) + len(row.splitlines())


@pytest.mark.parametrize(("name", "row", "kind", "column"), BAD_ROWS)
def test_a_bad_row_is_refused_by_file_line_column_and_value(folder, name, row, kind, column):
    line = with_bad(folder, name, row)

    text = refusal(folder)

    assert text.startswith(f"{name}.csv, line {line}, column {column}: ")
    assert f"({kind.replace('_', ' ')}); accepted: " in text


@pytest.mark.parametrize(("name", "row", "kind", "column"), BAD_ROWS)
def test_a_bad_row_may_be_left_out_and_is_counted_with_the_first_of_its_kind(
    folder, name, row, kind, column
):
    line = with_bad(folder, name, row)

    case = read(folder, bad_rows="report")

    first = next(item for item in case.left_out_rows if item.file == f"{name}.csv")
    assert (first.kind, first.count) == (kind, 1)
    assert (first.first.line, first.first.column) == (line, column)


def test_of_duplicates_the_first_is_kept(folder):
    write(folder, "faults", FAULTS + FAULTS.splitlines()[1] + "\n")

    case = read(folder, bad_rows="report")

    assert case.samples.faults.machine.tolist() == [1, 0]


def test_rows_that_differ_in_an_attribute_only_are_two_events(folder):
    write(
        folder,
        "faults",
        "machine,time,signature,severity,gpu\n"
        "b,2026-01-05T00:00:00Z,DBE,critical,0\nb,2026-01-05T00:00:00Z,DBE,critical,1\n",
    )

    assert read(folder).samples.faults.machine.size == 2


def test_rows_of_a_machine_that_was_left_out_are_left_out_and_counted(folder):
    write(folder, "machines", MACHINES.replace("b,canary,2026-01-01", "b,canary,2026-13-01"))

    case = read(folder, bad_rows="report")

    kinds = {(item.file, item.kind.value): item.count for item in case.left_out_rows}
    assert kinds["machines.csv", "bad_time"] == 1
    assert kinds["faults.csv", "machine_left_out"] == 1
    assert "b" not in case.samples.machines.name


def test_a_kept_long_interval_swallows_all_that_begin_inside_it(folder):
    write(
        folder,
        "service_intervals",
        "machine,start,end\n"
        "b,2026-01-01T00:00:00Z,2026-01-20T00:00:00Z\n"
        "b,2026-01-02T00:00:00Z,2026-01-03T00:00:00Z\n"
        "b,2026-01-05T00:00:00Z,2026-01-06T00:00:00Z\n"
        "b,2026-01-20T00:00:00Z,2026-01-21T00:00:00Z\n",
    )

    case = read(folder, bad_rows="report")

    assert case.samples.service.machine.size == 2
    assert case.left_out_rows[0].count == 2


def test_a_fault_outside_its_machines_service_counts_and_is_noted(folder):
    write(folder, "faults", FAULTS + "a,2026-01-15T00:00:00Z,DBE,critical\n")

    case = read(folder)

    assert case.samples.faults.machine.size == 3
    assert any(note.startswith("1 faults in the window lie outside") for note in case.notes)


def test_a_family_that_no_row_matches_is_noted(folder):
    case = read(folder, guardrails=[{"metric": "faults", "signatures": ["DBEE"]}])

    assert any("no row of faults.csv matches 'DBEE'" in note for note in case.notes)


def test_a_workload_that_no_row_carries_is_refused(folder):
    text = refusal(folder, guardrails=[{"metric": "throughput", "workloads": ["brt"]}])

    assert "observations.csv, column workload: no row carries 'brt'" in text


def test_an_arm_that_no_row_carries_is_refused_with_the_values_of_the_column(folder):
    text = refusal(folder, arms={"canary": ["newer"]})

    assert "machines.csv, column arm: no row carries 'newer'" in text
    assert "'canary' (2), 'control' (2), 'spare' (1)" in text


def test_a_missing_column_is_refused_with_the_columns_of_the_file(folder):
    write(folder, "machines", MACHINES.replace("arm", "group", 1))

    text = refusal(folder)

    assert text.startswith("machines.csv, line 1, column arm: not there")
    assert "columns of the file: machine, group, enrolled_at" in text
    assert '"columns": {"machines": {"arm": "..."}}' in text


def test_all_missing_columns_are_named_at_once(folder):
    write(folder, "machines", "machine,group,from,to\na,new,2026-01-01T00:00:00Z,\n")

    text = refusal(folder)

    assert text.count("not there") == 3
    assert '{"arm": "...", "enrolled_at": "...", "left_at": "..."}' in text


def test_a_mapping_to_a_column_that_is_not_there_is_refused(folder):
    text = refusal(folder, columns={"machines": {"arm": "rackk"}})

    assert "column rackk: not there, but the policy maps 'arm' to it (did you mean 'rack'?)" in text


def test_a_column_that_stands_there_twice_is_refused(folder):
    write(folder, "faults", FAULTS.replace("severity", "time"))

    assert "faults.csv, line 1, column time: stands there 2 times" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "faults.csv, line 1: the file is empty"),
        (
            FAULTS.encode() + b"b,2026-01-05T00:00:00Z,D\xffE,critical\n",
            "faults.csv, line 5, column signature: byte 0xff is not UTF-8",
        ),
        (FAULTS.encode("utf-16"), "faults.csv, line 1, column "),
        (
            FAULTS.encode() + b"b,2026-01-05T00:00:00Z,D\0E,critical\n",
            "faults.csv, line 5, column signature: ",
        ),
        (
            FAULTS.encode() + b'b,2026-01-05T00:00:00Z,"' + b"x" * 200_000 + b'",critical\n',
            "faults.csv, line 5: not a CSV row: field larger than field limit",
        ),
        (
            FAULTS.encode() + b"b," + b"x" * 3_000_000,
            "and does not end; accepted: lines of fewer than",
        ),
        (FAULTS.encode() + b'b,2026-01-05T00:00:00Z,"DBE', "line 5: not a CSV row: unexpected end"),
        (FAULTS.encode() + b'b,2026-01-05T00:00:00Z,"D"BE,x\n', "line 5: not a CSV row:"),
    ],
    ids=["empty", "latin", "utf-16", "NUL", "huge field", "huge line", "open quote", "bad quote"],
)
@pytest.mark.parametrize("bad_rows", ["error", "report"])
def test_a_file_that_is_no_table_is_refused_whatever_the_policy(folder, content, words, bad_rows):
    write(folder, "faults", content)

    assert words in refusal(folder, bad_rows=bad_rows)


def test_without_machines_there_is_no_case(folder):
    (folder / "machines.csv").unlink()

    assert "there is no machines.csv; without machines there is no exposure" in refusal(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CaseRefused, match="no such folder"):
        read_case(tmp_path / "none")


@pytest.mark.parametrize("arm", ["canary", "control"])
def test_an_arm_of_bad_rows_alone_is_refused_where_they_are_left_out(folder, arm):
    rows = [
        line.replace("2026-01-0", "garbage", 1) if f",{arm}," in line else line
        for line in MACHINES.splitlines()
    ]
    write(folder, "machines", "\n".join(rows))

    assert f"none of the 5 rows with a group is a good row of the {arm}" in refusal(
        folder, bad_rows="report"
    )


def test_a_covariate_beyond_all_use_is_refused(folder):
    write(folder, "machines", MACHINES.replace("1e1", "1e101"))

    assert "column pre: '1e101'; accepted: a finite number, up to 1e+100" in refusal(
        folder, covariates={"faults": "pre"}
    )


def test_a_machines_file_without_rows_is_refused(folder):
    write(folder, "machines", MACHINES.splitlines()[0] + "\n")

    assert "no row with a machine" in refusal(folder)
