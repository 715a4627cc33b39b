"""The command that finds the slow machine of a job."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from fleet import clock
from fleet.models import Machine, Observation
from tests.factories import make_machines

WORKERS = ("n1", "n2", "n3", "n4")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Sixty steps; n3 takes half as long again from step 130 on, steps go from 100 up."""
    rows = [
        (worker, 100 + step, 15 if worker == "n3" and step >= 30 else 10)
        for step in range(60)
        for worker in WORKERS
    ]
    file = tmp_path / "steps.csv"
    file.write_text("worker,step,seconds\n" + "".join(f"{w},{s},{t}\n" for w, s, t in rows))
    return file


def test_the_slow_machine_comes_first_with_its_step(recording, capsys):
    call_command("stragglers", str(recording))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 workers, 60 steps")
    assert lines[2].split()[:4] == ["n3", "1.500", "1.500-1.500", "130"]


def test_json_holds_the_index_and_the_name_of_the_step(recording, capsys):
    call_command("stragglers", str(recording), is_json=True)

    worst = json.loads(capsys.readouterr().out)["workers"][0]
    assert (worst["worker"], worst["step"], worst["step_name"]) == ("n3", 30, "130")
    assert worst["ratio"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("n1,160,soon", "line 242, column seconds: 'soon'"),
        ("n1,160,-1", "at least 0"),
        ("n1,159,11", "every step of a worker once"),
        (",160,10", "column worker"),
        ("n1,160,0", "positive and finite"),
    ],
)
def test_bad_input_says_where_and_what_is_accepted(recording, capsys, row, words):
    recording.write_text(recording.read_text() + row + "\n")

    with pytest.raises(SystemExit) as stopped:
        call_command("stragglers", str(recording))

    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_a_file_without_rows_or_with_other_columns_is_refused(tmp_path, capsys):
    file = tmp_path / "steps.csv"
    for text, words in (("worker,step,seconds\n", "no row"), ("a,b,c\n", "not there")):
        file.write_text(text)

        with pytest.raises(SystemExit):
            call_command("stragglers", str(file))

        assert words in capsys.readouterr().err


# --- from reports ----------------------------------------------------------------------------


@pytest.mark.django_db
def test_reports_that_name_a_job_are_steps_of_it(capsys):
    now = clock.now().replace(minute=0, second=0, microsecond=0)
    for place, machine in enumerate(make_machines(5)):
        for hour in range(50):
            slow = place == 2 and hour < 20  # in the last twenty hours
            Observation.objects.create(
                machine=machine,
                start=now - timedelta(hours=hour + 1),
                end=now - timedelta(hours=hour),
                in_service_seconds=3600,
                throughput=0.5 if slow else 1.0,
                job="training" if hour < 45 else "another",
                source="tests",
                source_key=f"{place} {hour}",
                received_at=now,
            )
    slowest = Machine.objects.order_by("pk")[2]

    call_command("stragglers", "--job", "training", "--hours", "60", "--json")

    worst = json.loads(capsys.readouterr().out)["workers"][0]
    assert (worst["worker"], worst["step"]) == (slowest.name, 25)
    assert worst["ratio"] == pytest.approx(2)
    assert worst["step_name"] == f"{now - timedelta(hours=19):%Y-%m-%dT%H:%MZ}"


@pytest.mark.django_db
@pytest.mark.parametrize(("hours", "words"), [("24", "no report of the last 24 h"), ("0", "got 0")])
def test_a_job_that_nobody_names_is_an_error(hours, words):
    with pytest.raises(CommandError, match=words):
        call_command("stragglers", "--job", "training", "--hours", hours)
