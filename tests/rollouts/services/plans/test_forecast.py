"""What people read before they approve: the planner's word on each wave."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import Group
from rest_framework.test import APIClient

from fleet import services as fleet_services
from fleet.models import Fault
from rollouts import selectors, services
from rollouts.models import Rollout
from rollouts.services.evidence import past
from tests.factories import (
    NOW,
    make_fault_report,
    make_machines,
    make_observation_report,
    make_recovery_report,
    make_user,
)
from tests.rollouts.plans import OLD, bundle_of, document

pytestmark = pytest.mark.django_db

DAYS = 10
FAULTS = {"metric": "faults", "required": "auto"}
THROUGHPUT = {"metric": "throughput", "required": True}


def fleet_with_a_past(
    machines: int = 60, *, faults_per_machine: float = 0.0, spread: float = 0.01
) -> None:
    """Machines that reported once a day, each with a speed and faults of its own."""
    made = make_machines(machines, versions={"bmc": OLD})
    rng = np.random.default_rng(5)
    own = rng.normal(0, 0.05, machines)
    counts = rng.poisson(faults_per_machine, machines)
    reports = []
    for number, machine in enumerate(made):
        for day in range(DAYS):
            end = NOW - timedelta(days=day, hours=1)
            value = 1.0 + own[number] + rng.normal(0, spread)
            reports.append(
                make_observation_report(
                    machine,
                    start=end - timedelta(days=1) + timedelta(hours=1),
                    end=end,
                    throughput=float(value),
                )
            )
        reports += [
            make_fault_report(machine, time=NOW - timedelta(hours=20 * (1 + k), minutes=number))
            for k in range(int(counts[number]))
        ]
    fleet_services.record(reports, source="test", key="past", now=NOW)


def submitted(*guardrails: Mapping[str, Any], **changes: Any) -> Rollout:
    author = make_user()
    rollout = services.create_draft(
        name="update",
        bundle=bundle_of("bmc"),
        selector="platform=dgx-h100",
        document=document(guardrails=list(guardrails), **({"resamples": 99_999} | changes)),
        author=author,
        now=NOW,
        seed=7,
    )
    services.submit(rollout, actor=author, now=NOW)
    return rollout


def word(rollout: Rollout, wave: int = 1) -> dict[str, Any]:
    return selectors.waves_of(rollout)[wave - 1].forecast


def test_a_wave_with_a_past_says_what_it_halts_on_and_rules_out() -> None:
    fleet_with_a_past(faults_per_machine=4)

    waves = [{"count": 15, "window_hours": 72}]
    found = word(submitted(FAULTS, waves=waves))["guardrails"]["faults"]

    half, most, nearly_all = found["halts_on"]
    assert 1 < half < most < nearly_all
    assert 1 < found["rules_out"] < 5
    assert found["halts_on_words"] == f"× {half:.1f} / {most:.1f} / {nearly_all:.1f}"


def test_with_too_few_re_assignments_a_wave_says_that_it_halts_on_nothing() -> None:
    fleet_with_a_past(faults_per_machine=4)

    # One in 25 is what the wave may spend, but more than the .032 of its window.
    waves = [{"count": 15, "window_hours": 72}]
    found = word(submitted(FAULTS, waves=waves, resamples=24))["guardrails"]["faults"]

    assert found["halts_on"] == [None, None, None]
    assert found["halts_on_words"] == "nothing"


def test_the_rate_before_is_per_machine_and_day() -> None:
    fleet_with_a_past(faults_per_machine=4)

    rate = word(submitted(FAULTS))["frozen_fault_rate"]["faults"]

    assert rate == pytest.approx(Fault.objects.count() / 60 / DAYS, rel=0.01)


def test_too_few_faults_cannot_be_decided_and_it_says_what_is_missing() -> None:
    fleet_with_a_past(faults_per_machine=1)

    found = word(submitted(FAULTS, delta_abs=0))

    assert found["decidable"] == {"faults": False}
    faults = found["guardrails"]["faults"]
    assert faults["hours_to_widen"] is None
    assert faults["more_hours"] > 0
    assert faults["expectation"].startswith("cannot be decided")
    assert f"{math.ceil(faults['more_hours'])} more hours" in faults["expectation"]


def test_throughput_is_judged_by_how_much_the_machines_varied_about_their_own_level() -> None:
    fleet_with_a_past(machines=200, spread=0.01)
    changes = {"waves": [{"count": 40, "window_hours": 48}]}

    found = word(submitted(THROUGHPUT, **changes))["guardrails"]["throughput"]

    # Means of five days of sd 1 %, adjusted for five before: about .6 %, far less than the
    # 5 % between machines.
    assert found["rules_out"] < 0.005
    assert found["hours_to_widen"] == 24
    assert found["expectation"].startswith("shown after about 24 h")


def test_in_a_large_fleet_the_head_of_the_drawn_order_stands_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet_with_a_past(machines=200, spread=0.01)
    monkeypatch.setattr(past, "MOST_DIRECT", 100)
    waves = [{"count": 40, "window_hours": 48}]

    found = word(submitted(THROUGHPUT, waves=waves))

    assert found["guardrails"]["throughput"]["rules_out"] < 0.005
    assert found["read_from"] == "read from the reports of 100 of 200 machines, no summary"


def test_a_wave_whose_guardrails_can_all_be_shown_says_when_it_widens() -> None:
    fleet_with_a_past(machines=200)

    found = word(submitted(THROUGHPUT, waves=[{"count": 40, "window_hours": 48}]))

    assert found["summary"] == "expected to widen after about 24 h if nothing has changed"


def test_a_wave_for_which_nobody_is_left_is_said_to_be_skipped() -> None:
    fleet_with_a_past(machines=40)
    waves = [{"count": 40, "window_hours": 48}, {"count": 10, "window_hours": 48}]

    first, second = selectors.forecast_of(submitted(THROUGHPUT, waves=waves))

    assert (first["canaries"] > 0, second["canaries"]) == (True, 0)
    assert second["summary"] == "nobody is left for this wave: it is skipped"


def test_without_a_past_nothing_is_claimed() -> None:
    make_machines(40, versions={"bmc": OLD})

    found = word(submitted(FAULTS, THROUGHPUT, {"metric": "recovery_time", "required": "auto"}))

    assert found["days_before"] == 0
    assert found["decidable"] == {"faults": False, "recovery_time": False}
    assert found["guardrails"]["faults"]["expectation"] == "unknown: no report of the period before"
    assert found["summary"] == "not expected to widen by itself: throughput may not be shown"


def test_interruptions_before_decide_what_recovery_can_show() -> None:
    fleet_with_a_past(machines=40)
    machines = make_machines(20, versions={"bmc": OLD})
    reports = [
        make_recovery_report(
            machine,
            time=NOW - timedelta(days=2, minutes=k),
            recovered_at=NOW - timedelta(days=1),
            path="replica_restarted",
        )
        for machine in machines
        for k in range(60)
    ]
    fleet_services.record(reports, source="test", key="interruptions", now=NOW)

    found = word(
        submitted(
            {"metric": "recovery_time", "required": "auto"},
            waves=[{"count": 20, "window_hours": 72}],
        )
    )

    assert found["decidable"] == {"recovery_time": True}
    assert found["guardrails"]["recovery_time"]["hours_to_widen"] is not None


def test_a_later_wave_counts_the_installs_of_the_waves_before() -> None:
    make_machines(200, versions={"bmc": OLD})
    waves = [{"count": 40, "window_hours": 48}, {"count": 60, "window_hours": 48}]

    rollout = submitted({"metric": "install", "required": "auto"}, waves=waves)

    first, second = (word(rollout, n)["guardrails"]["install"] for n in (1, 2))
    assert second["rules_out"] < first["rules_out"]


def test_a_later_wave_counts_the_silent_machines_of_the_waves_before() -> None:
    make_machines(200, versions={"bmc": OLD})
    waves = [{"count": 40, "window_hours": 48}, {"count": 40, "window_hours": 48}]

    rollout = submitted({"metric": "telemetry", "required": "auto"}, waves=waves)

    first, second = (word(rollout, n)["guardrails"]["telemetry"] for n in (1, 2))
    assert second["rules_out"] < first["rules_out"]
    assert second["halts_on"][0] >= first["halts_on"][0]


def test_a_smoke_wave_says_that_it_proves_little() -> None:
    fleet_with_a_past(faults_per_machine=1)

    found = word(
        submitted(
            FAULTS,
            {"metric": "install", "required": "auto"},
            waves=[
                {"count": 4, "window_hours": 48, "allows_smoke": True},
                {"count": 8, "window_hours": 48},
            ],
        )
    )

    assert found["summary"].startswith("a smoke wave: may widen")


def test_the_forecast_of_a_rollout_lists_its_judged_waves() -> None:
    fleet_with_a_past(faults_per_machine=4)
    rollout = submitted(FAULTS, THROUGHPUT)

    (wave,) = selectors.forecast_of(rollout)

    assert wave["number"] == 1
    assert wave["canaries"] == 8
    assert [row["name"] for row in wave["guardrails"]] == ["faults", "throughput"]
    assert wave["summary"]


def test_the_waves_of_the_api_carry_the_forecast() -> None:
    fleet_with_a_past(faults_per_machine=4)
    rollout = submitted(FAULTS, THROUGHPUT)
    viewer = make_user()
    viewer.groups.set(Group.objects.filter(name="viewer"))
    client = APIClient()
    client.force_authenticate(viewer)

    answer = client.get(f"/api/v1/rollouts/{rollout.pk}/waves").json()

    judged = next(wave["forecast"] for wave in answer["results"] if wave["number"] == 1)
    assert judged["guardrails"]["throughput"]["expectation"]
    assert judged["summary"] == selectors.forecast_of(rollout)[0]["summary"]


def test_a_rollout_planned_by_an_earlier_version_shows_no_forecast() -> None:
    fleet_with_a_past(machines=20)
    rollout = submitted(FAULTS)
    rollout.waves.update(forecast={"canaries": 8, "decidable": {}})

    assert selectors.forecast_of(rollout) == []


def test_paths_are_asked_for_only_where_a_hundred_interruptions_are_expected() -> None:
    # 1,200 interruptions of 60 machines in ten days: two a machine-day, so 20 canaries expect
    # 120 in three days and 80 in two.
    machines = make_machines(60, versions={"bmc": OLD})
    reports = [
        *(
            make_observation_report(
                machine, start=NOW - timedelta(days=DAYS), end=NOW - timedelta(hours=1)
            )
            for machine in machines
        ),
        *(
            make_recovery_report(
                machine,
                time=NOW - timedelta(hours=2 + 10 * k, minutes=number),
                recovered_at=NOW - timedelta(hours=1),
                path="replica_restarted",
            )
            for number, machine in enumerate(machines)
            for k in range(20)
        ),
    ]
    fleet_services.record(reports, source="test", key="paths", now=NOW)
    waves = [{"count": 20, "window_hours": hours} for hours in (72, 48)]

    rollout = submitted({"metric": "severe_path", "required": "auto"}, waves=waves)

    enough, too_few = (word(rollout, number)["decidable"]["severe_path"] for number in (1, 2))
    assert (enough, too_few) == (True, False)


LOST = {"metric": "lost_work", "required": False}


def test_lost_work_says_how_many_more_interruptions_halt() -> None:
    machines = make_machines(60, versions={"bmc": OLD})
    rng = np.random.default_rng(6)
    reports = [
        make_observation_report(
            machine, start=NOW - timedelta(days=DAYS), end=NOW - timedelta(hours=1)
        )
        for machine in machines
    ]
    for machine in machines:
        for _ in range(rng.poisson(4)):
            at = NOW - timedelta(minutes=int(rng.integers(600, 1_440 * DAYS)))
            reports.append(
                make_recovery_report(
                    machine, time=at, recovered_at=at + timedelta(minutes=30), path="continued"
                )
            )
    fleet_services.record(reports, source="test", key="past", now=NOW)

    found = word(submitted(LOST, waves=[{"count": 15, "window_hours": 72}]))["guardrails"]

    half, most, nearly_all = found["lost_work"]["halts_on"]
    assert 1.2 < half < most < nearly_all < 4
    assert found["lost_work"]["halts_on_words"] == f"× {half:.1f} / {most:.1f} / {nearly_all:.1f}"
    assert found["lost_work"]["expectation"] == "halts only, proves nothing"


def test_where_nothing_was_interrupted_lost_work_is_unknown() -> None:
    fleet_with_a_past()

    found = word(submitted(LOST))["guardrails"]["lost_work"]

    assert found["halts_on_words"] == "unknown"
    assert found["expectation"] == (
        "halts only, proves nothing; unknown: no interruption in 10.0 days before"
    )


def test_a_fault_never_seen_before_says_what_its_absence_would_rule_out() -> None:
    fleet_with_a_past()

    found = word(submitted(FAULTS, delta_abs=0.01))["guardrails"]["faults"]

    # -ln(.05) / .01 machine-days.
    assert found["expectation"] == (
        "unknown: no such fault in 10.0 days before; 300 machine-days of canaries without one "
        "would rule out 0.01 a day"
    )


def test_what_no_size_decides_says_how_many_machines_with_a_fault_it_takes() -> None:
    fleet_with_a_past(machines=20, faults_per_machine=0.05)
    past = [
        make_fault_report(machine, time=NOW - timedelta(days=2))
        for machine in make_machines(1, versions={"bmc": OLD})
    ]
    fleet_services.record(past, source="test", key="one", now=NOW)

    found = word(submitted(FAULTS, delta_abs=0, waves=[{"count": 4, "window_hours": 24}]))

    expectation = found["guardrails"]["faults"]["expectation"]
    assert "in this population: about " in expectation
    assert expectation.endswith(" machines with a fault are needed, of both arms")


def test_each_wave_says_where_its_figures_come_from() -> None:
    fleet_with_a_past()

    assert selectors.forecast_of(submitted(FAULTS))[0]["read_from"] == "read from reports"
