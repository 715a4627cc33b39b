"""Summaries of telemetry say what telemetry says, and are remade while it can change."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fleet import services, summaries, tasks
from fleet.models import Machine, TelemetrySummary
from fleet.services import summaries as keeping
from fleet.telemetry import digests
from tests.factories import (
    make_fault_report,
    make_machines,
    make_observation_report,
    make_recovery_report,
)

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 10, 18, tzinfo=UTC)


def report(
    machines: list[Machine], *, days: int = 4, key: str = "a", until: datetime = NOW
) -> None:
    """Two-hourly observations, a fault a day, and a recovery on the second machine."""
    reports = []
    for number, machine in enumerate(machines):
        for step in range(12 * days):
            end = until - timedelta(hours=2 * step)
            reports.append(
                make_observation_report(
                    machine,
                    start=end - timedelta(hours=2),
                    end=end,
                    throughput=1.0 + 0.01 * number,
                    workload="ab"[number % 2],
                )
            )
        reports += [
            make_fault_report(machine, time=until - timedelta(hours=20 * day + number, seconds=k))
            for day in range(days)
            for k in (0, 30)
        ]
    reports.append(make_recovery_report(machines[1], time=until - timedelta(hours=30)))
    services.record(reports, source="test", key="a", now=until)


def kept(machines: list[Machine], *, now: datetime = NOW) -> summaries.Kept:
    found = summaries.kept(np.array(sorted(machine.pk for machine in machines)), now=now)
    assert found is not None
    return found


def test_summaries_add_up_to_what_telemetry_says() -> None:
    machines = make_machines(5)
    report(machines)

    services.summarise(now=NOW)

    found = kept(machines)
    direct = summaries.digest_of(
        summaries.of_machines([machine.pk for machine in machines]), since=found.since, until=NOW
    )
    assert found.since == NOW - timedelta(days=4)
    assert found.as_of == NOW
    for machine in machines:
        mine = found.digest.reports.machine == machine.pk
        assert found.digest.reports.covered_seconds[mine].sum() == pytest.approx(4 * 86_400)
    assert found.digest.reports.count.sum() == direct.reports.count.sum()
    assert found.digest.clusters.events.sum() == direct.clusters.events.sum() == 40
    for column in ("count", "closed", "log_sum", "lost_hours", "lost_roots"):
        assert getattr(found.digest.interruptions, column).sum() == pytest.approx(
            getattr(direct.interruptions, column).sum()
        )
    assert found.digest.workloads == direct.workloads == ("a", "b")


def test_a_burst_over_midnight_is_kept_in_two_clusters_that_touch() -> None:
    (machine,) = make_machines(1)
    midnight = datetime(2026, 3, 10, tzinfo=UTC)
    times = [midnight + timedelta(seconds=seconds) for seconds in (-40, -10, 20)]
    services.record(
        [make_fault_report(machine, time=time) for time in times], source="t", key="b", now=NOW
    )

    services.summarise(now=NOW)

    clusters = kept([machine]).digest.clusters
    order = np.argsort(clusters.first)
    assert clusters.events[order].tolist() == [2, 1]
    gaps = clusters.first[order][1:] - clusters.last[order][:-1]
    assert gaps.tolist() == [30_000_000]


def test_making_summaries_twice_makes_the_same_ones() -> None:
    machines = make_machines(3)
    report(machines)
    services.summarise(now=NOW)
    first = list(TelemetrySummary.objects.values_list("day", "first_machine", "content"))

    services.summarise(now=NOW + timedelta(seconds=1))
    TelemetrySummary.objects.update(as_of=NOW - timedelta(days=30))
    services.summarise(now=NOW)

    again = list(TelemetrySummary.objects.values_list("day", "first_machine", "content"))
    assert [(day, bytes(content)) for day, _, content in first] == [
        (day, bytes(content)) for day, _, content in again
    ]


def test_a_day_that_can_change_is_remade_after_an_hour_and_a_settled_one_is_not() -> None:
    make_machines(2)
    services.summarise(now=NOW)

    soon = list(keeping.due(now=NOW + timedelta(minutes=50)))
    later = {day for day, _, _ in keeping.due(now=NOW + timedelta(minutes=70))}

    assert soon == []
    assert later == {NOW.date(), NOW.date() - timedelta(days=1)}


def test_late_reports_of_yesterday_are_taken_up() -> None:
    machines = make_machines(2)
    services.summarise(now=NOW)
    yesterday = NOW - timedelta(days=1)
    report(machines, days=1, until=yesterday)

    services.summarise(now=NOW + timedelta(hours=2))

    assert kept(machines, now=NOW + timedelta(hours=2)).digest.clusters.events.sum() == 4


def test_a_range_at_which_a_worker_is_is_left_to_it_until_its_lease_runs_out() -> None:
    make_machines(1)
    services.summarise(now=NOW)
    later = NOW + timedelta(hours=2)
    wall = datetime.now(UTC)
    TelemetrySummary.objects.update(leased_until=wall + timedelta(minutes=1))

    services.summarise(now=later)
    held = TelemetrySummary.objects.filter(as_of=later).count()
    TelemetrySummary.objects.update(leased_until=wall - timedelta(minutes=1))
    services.summarise(now=later)

    assert held == 0
    assert TelemetrySummary.objects.filter(as_of=later).count() == 2


def test_what_one_run_has_no_time_for_is_left_for_the_next_newest_days_first() -> None:
    make_machines(1)

    is_more = services.summarise(now=NOW, longest_seconds=-1)
    some = services.summarise(now=NOW, longest_seconds=60)

    assert is_more
    assert not some
    days = TelemetrySummary.objects.values_list("day", flat=True)
    assert min(days) == NOW.date() - timedelta(days=summaries.DAYS - 1)


def test_the_task_may_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    make_machines(1)

    tasks.summarise()
    tasks.summarise()

    assert TelemetrySummary.objects.count() == summaries.DAYS


def test_days_that_no_plan_reads_are_let_go() -> None:
    make_machines(1)
    services.summarise(now=NOW)

    services.summarise(now=NOW + timedelta(days=10))

    oldest = TelemetrySummary.objects.order_by("day").values_list("day", flat=True)[0]
    assert oldest >= NOW.date() - timedelta(days=4)


def test_a_machine_that_came_after_the_summary_is_not_covered() -> None:
    machines = make_machines(2)
    services.summarise(now=NOW)

    found = kept([*machines, *make_machines(1)])

    assert found.uncovered == 1


def test_only_days_without_a_gap_before_them_are_spoken_of() -> None:
    machines = make_machines(2)
    report(machines, days=6)
    services.summarise(now=NOW)
    TelemetrySummary.objects.filter(day=NOW.date() - timedelta(days=2)).delete()

    found = kept(machines)

    assert found.since == datetime(2026, 3, 9, tzinfo=UTC)


def test_without_any_summary_nothing_is_said() -> None:
    (machine,) = make_machines(1)

    assert summaries.kept(np.array([machine.pk]), now=NOW) is None


def test_packing_keeps_every_column() -> None:
    machines = make_machines(4)
    report(machines)
    first = machines[0].pk // TelemetrySummary.MACHINES * TelemetrySummary.MACHINES
    digest = summaries.digest_of(
        summaries.of_range(first), since=NOW - timedelta(days=3), until=NOW
    )

    again = digests.unpack(digests.pack(digest, first_machine=first), first_machine=first)

    for table in ("reports", "clusters", "interruptions"):
        for name, column in vars(getattr(digest, table)).items():
            assert np.array_equal(getattr(getattr(again, table), name), column), (table, name)
    assert (again.workloads, again.paths) == (digest.workloads, digest.paths)


def test_digests_of_different_workloads_are_joined_under_common_names() -> None:
    machines = make_machines(2)
    report(machines)
    one, two = (
        summaries.digest_of(
            summaries.of_machines([machine.pk]), since=NOW - timedelta(days=4), until=NOW
        )
        for machine in machines
    )

    found = digests.join([two, one])

    assert found.workloads == ("a", "b")
    assert [found.workloads[code] for code in found.reports.workload] == ["b", "a"]
