"""The goodput page, and the form by which a person says what an incident did to a job."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from fleet import losses, services
from fleet.clock import set_mode
from fleet.models import Incident, JobImpact, Machine
from tests.factories import NOW, make_fault_report, make_machine
from tests.fleet.goodput_world import record, serve
from tests.fleet.test_goodput import BLOOM, BLOOM_PATHS
from tests.recordings import recording
from tests.rollouts.pages import client_of

pytestmark = pytest.mark.django_db
LOST = 1800 * 64 / 3600


@pytest.fixture(autouse=True)
def at_noon():
    set_mode("stepped", at=NOW)


def show(status: int = 200, group: str = "viewer", **query: Any) -> str:
    response = client_of(group).get(reverse("fleet:goodput"), query)
    assert response.status_code == status
    return response.content.decode()


# --- the page ------------------------------------------------------------------------------------


def test_the_page_shows_each_number_with_its_definition():
    serve(100.0)
    record()

    page = show()

    assert "<strong>96.0 %</strong>" in page
    assert "Useful accelerator-hours / available accelerator-hours" in page
    assert "of 800 available" in page
    assert "hardware" in page
    assert "job restarted from checkpoint" in page
    assert "met" in page


def test_the_page_says_what_is_not_known():
    serve(100.0)
    record(accelerators=None)

    page = show()

    assert "at most <strong>100.0 %</strong>" in page
    assert "of 1 of 1 impacts the loss is not known" in page


def test_the_page_without_data_says_so_and_draws_nothing():
    page = show()

    assert "no accelerator-hours in service were reported" in page
    assert "No impact was told in these days." in page


def test_the_page_refuses_what_it_does_not_know():
    assert "unknown; known: since" in show(status=400, form="2026-01-01")
    assert "is not 1 to 400 days" in show(status=400, since="2026-03-02", until="2026-03-01")


def test_the_page_is_for_those_who_may_see_impacts():
    client = client_of("viewer")
    assert reverse("fleet:goodput") in client.get(reverse("fleet:return")).content.decode()
    client.logout()

    assert client.get(reverse("fleet:goodput")).status_code == 302


# --- a recorded diary ----------------------------------------------------------------------------


def load(path: Path) -> None:
    means = [f"--path-means={name}={ours}" for name, ours in BLOOM_PATHS.items()]
    call_command("import_impacts", path, "--source=bloom", "--accelerators=384", *means)


def test_the_bloom_diary_is_taken_in_and_its_repeated_work_told_by_cause(
    capsys: pytest.CaptureFixture[str],
):
    diary = recording(BLOOM)

    load(diary)
    load(diary)

    since = NOW.date().replace(year=2022, month=3, day=1)
    asked = losses.Asked(since=since, until=since.replace(month=8))
    causes = {one.name: one.loss for one in losses.report(asked, now=NOW).causes}
    assert causes["hardware"].repeated_seconds == 7.3 * 3600
    assert causes["hardware"].repeated_hours == pytest.approx(7.3 * 384)
    assert sum(loss.repeated_seconds for loss in causes.values()) == pytest.approx(42.3 * 3600)
    assert all(loss.unknown == loss.impacts for loss in causes.values())
    out = capsys.readouterr().out
    assert "impacts: 7 recorded, 0 there already\nrepeated work: 42.3 h, told of 4 of 7" in out
    assert "impacts: 0 recorded, 7 there already" in out


def test_a_diary_that_cannot_be_is_refused_with_its_line(tmp_path: Path):
    path = tmp_path / "diary.csv"
    path.write_text("job,time,path\nj,2099-01-01,continued\n")

    with pytest.raises(CommandError, match=r"diary.csv, line 2: fault_at: .* is still to come"):
        load(path)


# --- the incident page ---------------------------------------------------------------------------


def make_incident(machine: Machine) -> Incident:
    services.record([make_fault_report(machine)], source="agents", key=machine.name, now=NOW)
    services.record_incidents(now=NOW)
    return Incident.objects.get(machine=machine)


def send(incident: Incident, *, group: str = "technician", **fields: Any) -> Any:
    said = {
        "key": "k1",
        "outcome": "job_restarted_from_checkpoint",
        "job": "job-1",
        "accelerators": "64",
        "fault_at": "2026-03-02T11:00:00",
        "resumed_at": "2026-03-02T11:10:00",
        "repeated_seconds": "1200",
        **fields,
    }
    body = {f"impact-{name}": value for name, value in said.items()}
    return client_of(group).post(reverse("fleet:incident-impact", args=[incident.pk]), body)


def test_a_person_tells_an_effect_on_the_incident_page_once_however_often_it_is_sent():
    incident = make_incident(make_machine())

    assert send(incident).status_code == 302
    assert send(incident).status_code == 302

    (row,) = incident.impacts.all()
    assert row.accelerator_hours_lost == pytest.approx(LOST)
    assert row.user is not None
    page = client_of("viewer").get(reverse("fleet:incident", args=[incident.pk]))
    assert "32.0" in page.content.decode()
    assert "Tell an impact" not in page.content.decode()


def test_the_form_knows_the_job_of_the_machine_and_its_size():
    incident = make_incident(make_machine(job="job-7"))

    page = client_of("technician").get(reverse("fleet:incident", args=[incident.pk]))

    text = page.content.decode()
    assert 'name="impact-job" value="job-7"' in text
    assert 'name="impact-accelerators" value="8"' in text
    assert 'value="2026-03-02T12:00:00"' in text


def test_the_form_knows_what_kind_of_job_it_is():
    incident = make_incident(make_machine(job="job-7", workload="pre-training"))

    page = client_of("technician").get(reverse("fleet:incident", args=[incident.pk]))

    assert '<option value="pre_training" selected>' in page.content.decode()


def test_what_cannot_be_is_shown_at_its_field():
    incident = make_incident(make_machine())

    answer = send(incident, resumed_at="2026-03-02T10:00:00", replicas_affected="3")

    assert answer.status_code == 400
    text = answer.content.decode()
    assert "is before 2026-03-02T11:00:00+00:00, when it began" in text
    assert "3 of how many?" in text
    assert not JobImpact.objects.exists()


def test_what_is_left_empty_is_not_known():
    incident = make_incident(make_machine())

    send(incident, repeated_seconds="")

    page = client_of("viewer").get(reverse("fleet:incident", args=[incident.pk]))
    assert "not known: repeated_seconds was not told" in page.content.decode()


def test_telling_an_effect_needs_its_right():
    assert send(make_incident(make_machine()), group="viewer").status_code == 403


@pytest.mark.parametrize(
    "query", [{"until": "0001-01-01"}, {"since": "9999-12-30", "until": "9999-12-31"}]
)
def test_days_at_the_end_of_the_calendar_are_refused(query: dict[str, str]):
    assert "is not in those from 1970 to 2199" in show(400, **query)
