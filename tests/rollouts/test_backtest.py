"""The backtest of recorded cases: decision, document, report, exit status."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from django.core.management import call_command

from rollouts import backtest
from rollouts.analysis.policy import Metric
from rollouts.analysis.verdicts import (
    ArmCounts,
    DecisionKind,
    GuardrailEvaluation,
    Interval,
    LookEvaluation,
    Reason,
    Recommendation,
    Verdict,
)
from rollouts.backtest_report import as_text
from rollouts.cases import Case, read_case

POLICY = {
    "window": {
        "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-31T00:00:00Z",
        "looks": 24,
        "burn_in_hours": 0,
    },
    "resamples": 1999,
    "guardrails": [{"metric": "faults", "signatures": ["DBE"], "required": True}],
}


def recording(folder: Path, *, faults_per_day: tuple[float, float], machines: int = 60) -> Path:
    """Equal arms over 30 days, Poisson faults at the given rates of canary and control."""
    rng = np.random.default_rng(7)
    folder.mkdir(exist_ok=True)
    rows, events = ["machine,arm,enrolled_at,left_at"], ["machine,time,signature,severity"]
    for number in range(2 * machines):
        arm = number % 2
        name = f"m{number:03d}"
        rows.append(f"{name},{('canary', 'control')[arm]},2026-01-01T00:00:00Z,")
        for second in sorted(rng.uniform(0, 30 * 86400, rng.poisson(30 * faults_per_day[arm]))):
            moment = np.datetime64("2026-01-01T00:00:00") + np.timedelta64(int(second), "s")
            events.append(f"{name},{moment}Z,DBE,critical")
    (folder / "machines.csv").write_text("\n".join(rows) + "\n")
    (folder / "faults.csv").write_text("\n".join(events) + "\n")
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("sound"), faults_per_day=(0.05, 0.1))


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("harmful"), faults_per_day=(0.3, 0.05))


@pytest.fixture(scope="module")
def unclear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("unclear"), faults_per_day=(0.01, 0.01), machines=10)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    return path


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with pytest.raises(SystemExit) as caught:
        call_command("backtest", str(folder), *arguments, stdout=out, stderr=err)
    return int(caught.value.code or 0), out.getvalue(), err.getvalue()


def as_json(folder: Path, policy: Path, *arguments: str) -> dict:
    _, out, _ = run(folder, "--policy", str(policy), "--json", *arguments)
    return json.loads(out, parse_constant=pytest.fail)


# --- by hand: which look says what ---------------------------------------------------------


def evaluation(verdict: Verdict, *, estimate: float | None = 1.0) -> GuardrailEvaluation:
    return GuardrailEvaluation(
        name="faults:DBE",
        metric=Metric.FAULTS,
        verdict=verdict,
        unit="ratio",
        estimate=estimate,
        repeated=Interval(0.5, math.inf, 0.95),
        fixed_look=Interval(0.6, None, 0.95),
        canary=ArmCounts(60, 5, 100.0),
        control=ArmCounts(59, 6, 99.0),
        reason=f"because {estimate}",
        required=True,
        is_decidable=None,
        crossed=verdict is Verdict.HARMFUL,
        shown=verdict is Verdict.NOT_WORSE,
    )


def look(number: int, kind: DecisionKind, verdict: Verdict, **figures: float) -> LookEvaluation:
    return LookEvaluation(
        look=number,
        as_of_seconds=3600.0 * number,
        elapsed=number / 4,
        guardrails=(evaluation(verdict, **figures),),
        recommendation=Recommendation(kind, Reason.EVIDENCE_OPEN, f"look {number} says so"),
    )


HOLD, WIDEN, HALT = DecisionKind.HOLD, DecisionKind.WIDEN, DecisionKind.HALT


@pytest.fixture(scope="module")
def case(sound: Path) -> Case:
    return read_case(sound, POLICY)


def replayed(case: Case, *kinds: DecisionKind) -> backtest.Backtest:
    verdicts = {
        HOLD: Verdict.INCONCLUSIVE,
        WIDEN: Verdict.NOT_WORSE,
        HALT: Verdict.HARMFUL,
    }
    looks = (
        look(number, kind, verdicts[kind], estimate=float(number))
        for number, kind in enumerate(kinds, start=1)
    )
    return backtest.Backtest(case=case, looks=tuple(looks))


@pytest.mark.parametrize(
    ("kinds", "decision", "number"),
    [
        ((HOLD, WIDEN, HALT), "widen", 2),
        ((HOLD, HALT, WIDEN), "halt", 2),
        ((HOLD, HOLD, HOLD), "hold", 3),
        ((HALT, HOLD, HOLD), "halt", 1),
    ],
)
def test_the_first_look_that_widens_or_halts_decides_else_the_last(case, kinds, decision, number):
    document = backtest.as_document(replayed(case, *kinds))

    assert (document["decision"], document["look"], document["looks"]) == (decision, number, 3)
    assert document["reason"] == f"look {number} says so"
    assert document["decided_at"] == f"2026-01-01T0{number}:00:00Z"


def test_later_looks_stay_in_the_history(case):
    history = backtest.as_document(replayed(case, HOLD, WIDEN, HALT))["history"]

    assert [entry["decision"] for entry in history] == ["hold", "widen", "halt"]
    assert history[2]["guardrails"] == {"faults:DBE": "harmful"}
    assert history[0]["as_of"] == "2026-01-01T01:00:00Z"


def test_the_verdict_is_of_the_deciding_look_and_the_figures_of_the_whole_window(case):
    result = replayed(case, HOLD, WIDEN, HALT)

    whole = backtest.as_document(result)["guardrails"][0]
    then = backtest.as_document(result, is_at_decision=True)["guardrails"][0]

    assert (whole["verdict"], whole["estimate"]) == ("not_worse", 3.0)
    assert (then["verdict"], then["estimate"]) == ("not_worse", 2.0)


def test_numbers_that_do_not_exist_are_null_with_a_reason(case):
    result = backtest.Backtest(case, (look(1, HOLD, Verdict.NO_DATA, estimate=math.nan),))

    guardrail = backtest.as_document(result)["guardrails"][0]

    assert guardrail["estimate"] is None
    assert guardrail["high"] is None
    assert guardrail["fixed_look"] == {"low": 0.6, "high": None, "level": 0.95}
    assert guardrail["reason"].startswith("because")


# --- through reader and judge --------------------------------------------------------------


def test_the_document_has_exactly_the_promised_fields(sound, policy):
    document = as_json(sound, policy)

    assert list(document) == [
        "case", "decision", "reason_code", "reason", "advisory", "advisory_because", "look",
        "looks", "decided_at", "left_out", "guardrails", "history",
    ]  # fmt: skip
    assert list(document["guardrails"][0]) == [
        "name", "metric", "verdict", "unit", "estimate", "low", "high", "fixed_look", "canary",
        "control", "reason",
    ]  # fmt: skip
    assert list(document["guardrails"][0]["canary"]) == ["machines", "events", "exposure_hours"]
    assert list(document["history"][0]) == ["look", "as_of", "decision", "guardrails"]
    assert document["left_out"] == {"machines": 0, "rows": []}


def test_every_recorded_case_is_advisory(sound, policy):
    document = as_json(sound, policy)

    assert document["advisory"] is True
    assert document["advisory_because"] == ["assignment was not drawn by the engine"]


def test_a_better_canary_is_widened_at_the_first_checkpoint_with_status_0(sound, policy):
    status, out, err = run(sound, "--policy", str(policy), "--json")

    document = json.loads(out)
    assert (status, err) == (0, "")
    assert (document["decision"], document["look"]) == ("widen", 6)
    assert document["guardrails"][0]["verdict"] == "not_worse"
    assert document["guardrails"][0]["high"] < 2


def test_a_harmful_canary_is_halted_with_status_4(harmful, policy):
    status, out, _ = run(harmful, "--policy", str(policy), "--json")

    document = json.loads(out)
    assert status == 4
    assert document["reason_code"] == "harmful"
    assert document["guardrails"][0]["low"] > 1


def test_what_nothing_proves_is_held_with_status_3(unclear, policy):
    status, out, _ = run(unclear, "--policy", str(policy), "--json")

    document = json.loads(out)
    assert status == 3
    assert (document["decision"], document["look"]) == ("hold", 24)


def test_a_replay_repeats_to_the_same_text(harmful, policy):
    arguments = (harmful, "--policy", str(policy), "--json")

    assert run(*arguments) == run(*arguments)


def test_counts_are_the_distinct_rows_and_the_exposure_of_the_files(sound, policy):
    rows = (sound / "faults.csv").read_text().splitlines()[1:]
    arms = dict(
        line.split(",")[:2] for line in (sound / "machines.csv").read_text().splitlines()[1:]
    )
    by_arm = {"canary": 0, "control": 0}
    for row in rows:
        by_arm[arms[row.split(",")[0]]] += 1

    guardrail = as_json(sound, policy)["guardrails"][0]

    for arm, events in by_arm.items():
        assert guardrail[arm]["events"] == events
        assert guardrail[arm]["machines"] == 60
        assert guardrail[arm]["exposure_hours"] == pytest.approx(60 * 30 * 24)


def test_a_required_guardrail_without_its_file_never_widens(sound, tmp_path):
    document = {**POLICY, "guardrails": [*POLICY["guardrails"], {"metric": "throughput"}]}
    path = tmp_path / "both.json"
    path.write_text(json.dumps(document))

    status, out, _ = run(sound, "--policy", str(path), "--json")

    report = json.loads(out)
    assert (status, report["reason_code"]) == (3, "no_data")
    assert report["guardrails"][1]["verdict"] == "no_data"
    assert report["guardrails"][1]["estimate"] is None


def test_without_its_file_a_guardrail_has_no_events_rather_than_none(sound, tmp_path):
    (tmp_path / "machines.csv").write_text((sound / "machines.csv").read_text())
    case = read_case(tmp_path, POLICY)

    guardrail = backtest.as_document(backtest.replay(case))["guardrails"][0]

    assert guardrail["verdict"] == "no_data"
    assert (guardrail["canary"]["events"], guardrail["control"]["events"]) == (None, None)


# --- bad input -----------------------------------------------------------------------------


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in ("machines.csv", "faults.csv"):
        (folder / name).write_text((sound / name).read_text())
    return folder


def test_bad_input_is_one_block_on_standard_error_with_status_2(broken, policy):
    with (broken / "faults.csv").open("a") as handle:
        handle.write("m001,2026-01-05T00:00:00,DBE,critical\n")

    status, out, err = run(broken, "--policy", str(policy), "--json")

    assert (status, out) == (2, "")
    assert "faults.csv, line" in err
    assert "column time: '2026-01-05T00:00:00' (time without zone); accepted: " in err


def test_a_bad_policy_is_bad_input(sound, tmp_path):
    path = tmp_path / "p.json"
    path.write_text('{"lokos": 3}')

    status, out, err = run(sound, "--policy", str(path))

    assert (status, out) == (2, "")
    assert "lokos: unknown key; did you mean 'looks'?" in err


def test_reported_slips_stand_in_the_report_with_the_first_of_their_kind(broken, tmp_path):
    with (broken / "faults.csv").open("a") as handle:
        handle.write("nobody,2026-01-05T00:00:00Z,DBE,critical\nnone,2026-01-05T00:00:00Z,X,y\n")
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**POLICY, "bad_rows": "report"}))

    rows = as_json(broken, path)["left_out"]["rows"]

    assert [(row["file"], row["kind"], row["count"]) for row in rows] == [
        ("faults.csv", "unknown_machine", 2)
    ]
    assert rows[0]["first"]["value"] == "nobody"


def test_no_database_is_needed_and_standard_output_holds_one_object(sound, policy):
    command = [sys.executable, "manage.py", "backtest", str(sound), "--policy", str(policy)]
    environment = {
        **os.environ,
        "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none",
        "SECRET_KEY": "only-for-this-test-" * 4,
    }

    done = subprocess.run(
        [*command, "--json"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decision"] == "widen"


# --- the report ----------------------------------------------------------------------------


def test_the_report_names_decision_verdicts_and_every_look(sound, policy):
    status, out, _ = run(sound, "--policy", str(policy))

    assert status == 0
    assert ": WIDEN at look 6 of 24" in out.splitlines()[0]
    assert "advisory: assignment was not drawn by the engine" in out
    assert sum("2026-01" in line and "inconclusive" in line for line in out.splitlines()) == 5


def test_a_pipe_gets_plain_text(case):
    text = as_text(replayed(case, HOLD, WIDEN), is_at_decision=False, is_terminal=False)

    assert "\x1b" not in text


def test_a_terminal_gets_colours(case):
    text = as_text(replayed(case, HOLD, WIDEN), is_at_decision=False, is_terminal=True)

    assert "\x1b[" in text


def test_the_report_shows_what_cannot_be_estimated(case):
    result = backtest.Backtest(case, (look(1, HOLD, Verdict.NO_DATA, estimate=None),))

    text = as_text(result, is_at_decision=False, is_terminal=False)

    assert "not estimable" in text
    assert "nan" not in text.lower()
