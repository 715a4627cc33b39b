"""Impacts and goodput over REST: what is told or refused, and the numbers with their words."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from rest_framework.test import APIClient

from fleet import services
from fleet.clock import set_mode
from fleet.models import JobImpact
from tests.factories import NOW, make_fault_report, make_machine, make_user
from tests.fleet.goodput_world import serve

pytestmark = pytest.mark.django_db
CHECKPOINT = "job_restarted_from_checkpoint"
TOLD = {
    "source_key": "1",
    "outcome": CHECKPOINT,
    "fault_at": "2026-03-02T10:00:00Z",
    "resumed_at": "2026-03-02T10:10:00Z",
    "job": "job-1",
    "job_kind": "pre_training",
    "repeated_seconds": 1200.0,
    "accelerators": 64,
    "cause": "hardware",
}
LOST = 1800 * 64 / 3600


@pytest.fixture(autouse=True)
def at_noon():
    set_mode("stepped", at=NOW)


def client(*permissions: str) -> APIClient:
    user = make_user()
    for name in permissions or ("add_jobimpact", "view_jobimpact", "view_machine"):
        user.user_permissions.add(Permission.objects.get(codename=name))
    api = APIClient()
    api.force_authenticate(user)
    return api


def tell(status: int = 201, **fields: Any) -> Any:
    body = {"source": "trainer", **TOLD, **fields}
    response = client().post("/api/v1/impacts", body, format="json")
    assert response.status_code == status, response.json()
    return response.json()


def goodput(status: int = 200, **query: Any) -> Any:
    response = client().get("/api/v1/goodput", query)
    assert response.status_code == status, response.json()
    return response.json()


# --- impacts -------------------------------------------------------------------------------------


def test_an_impact_is_told_and_read_with_its_loss():
    told = tell()

    assert told["accelerator_hours_lost"] == pytest.approx(LOST)
    assert told["reason"] == ""
    assert client().get(f"/api/v1/impacts/{told['id']}").json() == told


def test_an_impact_whose_loss_is_not_known_says_why():
    told = tell(accelerators=None)

    assert told["accelerator_hours_lost"] is None
    assert told["reason"] == "accelerators was not told"


def test_telling_again_changes_nothing():
    first = tell()

    assert tell(status=200) == first
    assert tell(status=409, accelerators=8)["code"] == "impact_conflict"


def test_an_impact_that_ends_before_it_begins_is_refused():
    problem = tell(status=400, resumed_at="2026-03-02T09:00:00Z")

    assert problem["code"] == "impact_refused"
    assert "is before 2026-03-02T10:00:00+00:00, when it began" in problem["detail"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"fault_at": "2026-03-02T10:00:00"}, "fault_at"),
        ({"outcome": "exploded"}, "outcome"),
        ({"job_kind": "mining"}, "job_kind"),
        ({"machine": "nowhere"}, "machine"),
        ({"incident": 404}, "incident"),
        ({"replicas": 3}, "replicas"),
        ({"accelerators": "many"}, "accelerators"),
    ],
)
def test_what_is_malformed_is_refused_by_name(fields: dict[str, Any], field: str):
    assert [one["field"] for one in tell(status=400, **fields)["errors"]] == [field]


def test_a_correction_names_the_row_and_takes_its_place():
    wrong = tell()
    right = tell(source_key="2", accelerators=128, corrects=wrong["id"])

    standing = client().get("/api/v1/impacts", {"stands": "true"}).json()["results"]
    assert [one["id"] for one in standing] == [right["id"]]
    assert client().get(f"/api/v1/impacts/{wrong['id']}").json()["corrected_by"] == right["id"]


def test_a_batch_takes_what_can_be_and_refuses_the_rest_by_its_place():
    pre_empted = {**TOLD, "source_key": "2", "job": "job-2", "caused_by_key": "1"}
    wrong = {**TOLD, "source_key": "3", "replicas_affected": 9, "replicas_total": 8}
    orphan = {**TOLD, "source_key": "4", "job": "job-4", "caused_by_key": "none"}
    body = {"source": "trainer", "impacts": [TOLD, pre_empted, wrong, orphan, TOLD]}

    answer = client().post("/api/v1/impacts/batch", body, format="json").json()

    assert (answer["accepted"], answer["duplicates"]) == (2, 1)
    assert [(one["index"], one["source_key"]) for one in answer["refused"]] == [(2, "3"), (3, "4")]
    assert answer["ids"][0] == answer["ids"][4]
    assert JobImpact.objects.get(source_key="2").caused_by_id == answer["ids"][0]


def test_telling_needs_its_permission_and_so_does_reading():
    body = {"source": "trainer", **TOLD}

    assert client("view_jobimpact").post("/api/v1/impacts", body).status_code == 403
    batch = {"source": "trainer", "impacts": [TOLD]}
    assert client("view_jobimpact").post("/api/v1/impacts/batch", batch).status_code == 403
    assert client("view_machine").get("/api/v1/impacts").status_code == 403
    assert client("view_machine").get("/api/v1/goodput").status_code == 403


def test_an_impact_is_never_edited_or_deleted():
    pk = tell()["id"]

    assert client().patch(f"/api/v1/impacts/{pk}", {"accelerators": 1}).status_code in (403, 405)
    assert client().delete(f"/api/v1/impacts/{pk}").status_code in (403, 405)


def test_impacts_are_found_by_job_and_time_and_an_unknown_filter_is_refused():
    tell()
    tell(source_key="2", job="job-2", fault_at="2026-03-02T11:00:00Z", resumed_at=None)

    found = client().get("/api/v1/impacts", {"fault_after": "2026-03-02T10:30:00Z"}).json()
    assert [one["job"] for one in found["results"]] == ["job-2"]
    assert client().get("/api/v1/impacts", {"jbo": "job-1"}).status_code == 400


# --- goodput -------------------------------------------------------------------------------------


def test_goodput_is_useful_over_available_accelerator_hours():
    serve(100.0)
    tell()

    told = goodput()

    assert told["total"]["available"] == 800.0
    assert told["total"]["loss"]["accelerator_hours"] == pytest.approx(LOST)
    assert told["total"]["goodput"]["value"] == pytest.approx(1 - LOST / 800)
    assert told["total"]["is_at_most"] is False
    assert "Useful accelerator-hours / available" in told["definitions"]["goodput"]


def test_each_kind_of_job_has_its_target():
    serve(100.0)
    serve(100.0, kind="reinforcement_learning")
    serve(100.0, kind="")
    tell(accelerators=320)  # 160 of 800: 80 %
    tell(source_key="2", job="job-2", job_kind="reinforcement_learning", accelerators=64)

    kinds = {one["name"]: one for one in goodput()["kinds"]}

    assert kinds["pre_training"]["target"] == 0.85
    assert (kinds["pre_training"]["goodput"]["value"], kinds["pre_training"]["is_met"]) == (
        pytest.approx(0.8),
        False,
    )
    assert (
        kinds["reinforcement_learning"]["target"],
        kinds["reinforcement_learning"]["is_met"],
    ) == (0.9, True)
    assert (kinds[""]["target"], kinds[""]["is_met"]) == (None, None)


def test_a_loss_that_is_not_known_is_shown_apart_and_makes_the_share_at_most():
    serve(100.0)
    tell()
    tell(source_key="2", job="job-2", accelerators=None)

    total = goodput()["total"]

    assert (total["loss"]["impacts"], total["loss"]["unknown"]) == (2, 1)
    assert total["is_at_most"] is True
    assert goodput()["kinds"][0]["is_met"] is None


def test_losses_are_split_by_cause_and_by_path():
    tell()
    tell(source_key="2", job="job-2", cause="", outcome="job_lost", resumed_at=None)

    told = goodput()

    causes = {one["name"]: one["loss"]["accelerator_hours"] for one in told["causes"]}
    assert causes == {
        "hardware": pytest.approx(LOST),
        "unexplained": pytest.approx(1200 * 64 / 3600),
    }
    paths = {one["name"]: one["share"]["value"] for one in told["paths"]}
    assert paths == {CHECKPOINT: pytest.approx(0.6), "job_lost": pytest.approx(0.4)}


def test_what_was_corrected_counts_no_more():
    wrong = tell(accelerators=6400)
    tell(source_key="2", corrects=wrong["id"])

    assert goodput()["total"]["loss"]["accelerator_hours"] == pytest.approx(LOST)


def test_pre_empted_jobs_count_once_in_the_total_and_are_shown_apart():
    first = tell()
    tell(source_key="2", job="job-2", caused_by=first["id"])

    loss = goodput()["total"]["loss"]

    assert loss["accelerator_hours"] == pytest.approx(2 * LOST)
    assert (loss["second_order"], loss["second_order_hours"]) == (1, pytest.approx(LOST))


def test_days_and_weeks_add_up_to_the_same():
    for back in range(3):
        serve(10.0, day=NOW - timedelta(days=back), first_machine=back)
    tell()
    tell(
        source_key="2",
        fault_at="2026-03-01T10:00:00Z",
        resumed_at="2026-03-01T10:10:00Z",
    )

    days = goodput(since="2026-02-28", until="2026-03-02")["bins"]
    weeks = goodput(since="2026-02-23", until="2026-03-02", per="week")["bins"]

    assert [one["loss"]["impacts"] for one in days] == [0, 1, 1]
    assert [one["available"] for one in days] == [80.0, 80.0, 80.0]
    assert [(one["since"], one["loss"]["impacts"]) for one in weeks] == [
        ("2026-02-23", 1),
        ("2026-03-02", 1),
    ]


def test_pool_platform_and_kind_narrow_both_loss_and_time():
    serve(100.0, pool="a")
    serve(100.0, pool="b", kind="inference")
    tell(machine=make_machine(pool="a").name)

    assert goodput(pool="a")["total"]["goodput"]["value"] == pytest.approx(1 - LOST / 800)
    assert goodput(pool="b")["total"]["goodput"]["value"] == 1.0
    assert goodput(job_kind="inference")["total"]["goodput"]["value"] == 1.0
    assert goodput(pool="c")["total"]["goodput"] == {
        "value": None,
        "formula": "goodput",
        "reason": "no accelerator-hours in service were reported",
    }


def test_machines_fail_whatever_runs_on_them():
    serve(100.0)
    serve(300.0, kind="inference")
    services.record([make_fault_report(make_machine())], source="agents", key="1", now=NOW)
    services.record_incidents(now=NOW)

    queries: list[dict[str, str]] = [{}, {"job_kind": "inference"}]
    rates = [goodput(**query)["failures_per_machine_day"] for query in queries]

    assert [rate["value"] for rate in rates] == [pytest.approx(24 / 400)] * 2


def test_without_failures_nothing_is_expected_and_the_reason_is_said():
    expected = goodput()["expected"]

    assert expected["ettr"]["value"] is None
    assert expected["ettr"]["reason"] == "no machine-hours in service were reported"


@pytest.mark.parametrize(
    "query",
    [
        {"since": "2026-03-05", "until": "2026-03-02"},
        {"since": "2020-01-01"},
        {"job_kind": "mining"},
        {"platform": "unknown"},
        {"per": "hour"},
        {"from": "2026-03-01"},
        {"checkpoint_minutes": "0"},
        {"machines": "0"},
    ],
)
def test_a_query_that_makes_no_sense_is_refused(query: dict[str, str]):
    assert goodput(status=400, **query)["code"] == "invalid"
