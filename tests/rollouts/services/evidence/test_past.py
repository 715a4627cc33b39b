"""The period before reads the same from summaries as from telemetry."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import services as fleet_services
from fleet.models import Fault, Machine
from fleet.telemetry import digests
from fleet.telemetry.digests import Clusters
from rollouts import planning, policies
from rollouts.analysis.policy import Policy
from rollouts.services.evidence import past
from rollouts.services.evidence.drawn import Drawn, drawn_from
from tests.factories import (
    make_fault_report,
    make_machines,
    make_observation_report,
    make_recovery_report,
)
from tests.rollouts.plans import document

NOW = datetime(2026, 3, 10, tzinfo=UTC)
MINUTE = 60_000_000
GUARDRAILS = [
    {"metric": "faults", "signatures": ["xid.*"]},
    {"metric": "faults", "signatures": ["*"]},
    {"metric": "throughput"},
    {"metric": "recovery_time"},
    {"metric": "lost_work"},
]


def policy() -> Policy:
    plan = policies.plan_from(document(selector="platform=dgx-h100", guardrails=GUARDRAILS))
    return policies.policy_from(plan, kind=policies.Kind.PLAN)


def drawn(machines: list[Machine]) -> Drawn:
    design = planning.draw_order(
        [planning.UnitInput(machine.name, {"site": "a"}) for machine in machines],
        sizes=[4],
        seed=1,
        salt="x",
        strata=["site"],
    )
    return drawn_from(design, {machine.name: machine.pk for machine in machines})


def a_fleet_with_a_past(machines: int = 24, *, days: int = 8) -> list[Machine]:
    """Machines with eight whole days of reports, faults in bursts, and interruptions."""
    made = make_machines(machines)
    rng = np.random.default_rng(2)
    own = rng.normal(1, 0.05, machines)
    reports = []
    for number, machine in enumerate(made):
        for step in range(4 * days):
            end = NOW - timedelta(hours=6 * step)
            reports.append(
                make_observation_report(
                    machine,
                    start=end - timedelta(hours=6),
                    end=end,
                    throughput=float(own[number] + rng.normal(0, 0.01)),
                )
            )
        reports += [
            make_fault_report(
                machine,
                time=NOW - timedelta(minutes=int(rng.integers(1, 1_440 * days))),
                signature=str(rng.choice(["xid.79", "xid.48", "host.panic"])),
            )
            for _ in range(rng.poisson(40))
        ]
        reports += [
            make_recovery_report(
                machine,
                time=(at := NOW - timedelta(hours=int(rng.integers(2, 24 * days)))),
                recovered_at=at + timedelta(minutes=int(rng.integers(1, 60))),
                path="job_restarted_from_checkpoint" if rng.random() < 0.3 else "continued",
            )
            for _ in range(2)
        ]
    fleet_services.record(reports, source="test", key="past", now=NOW)
    fleet_services.summarise(now=NOW)
    return made


@pytest.mark.django_db
def test_summaries_give_the_very_past_that_telemetry_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = drawn(a_fleet_with_a_past())
    direct = past.read_past(machines, policy(), now=NOW)
    monkeypatch.setattr(past, "MOST_DIRECT", 10)

    kept = past.read_past(machines, policy(), now=NOW)

    assert direct.source.words == "read from reports"
    assert kept.source.words == "summaries of 2026-03-10 00:00 UTC"
    assert kept.days == direct.days == 8
    assert {name: counts.tolist() for name, counts in kept.episodes.items()} == {
        name: counts.tolist() for name, counts in direct.episodes.items()
    }
    assert kept.sigma == pytest.approx(direct.sigma, rel=1e-6)
    assert kept.interruptions_per_day == direct.interruptions_per_day
    assert kept.severe_share == direct.severe_share
    assert kept.recovery_sigma == pytest.approx(direct.recovery_sigma)
    assert kept.lost is not None
    assert direct.lost is not None
    assert vars(kept.lost) == pytest.approx(vars(direct.lost))


@pytest.mark.django_db
def test_the_fleets_own_interruptions_say_how_recovery_spreads_and_how_often_it_is_severe() -> None:
    found = past.read_past(drawn(a_fleet_with_a_past()), policy(), now=NOW)

    assert 0.1 < found.severe_share < 0.5
    assert found.severe_share != past.power.SEVERE_SHARE
    assert found.recovery_sigma != past.power.RECOVERY_SIGMA


@pytest.mark.django_db
def test_the_check_of_the_draw_reads_whole_populations_or_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = drawn(make_machines(12))
    monkeypatch.setattr(past, "MOST_DIRECT", 10)

    assert past.read_before(machines, now=NOW, whole=True) is None


@pytest.mark.django_db
def test_old_summaries_and_machines_without_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [*a_fleet_with_a_past(), *make_machines(2)]
    monkeypatch.setattr(past, "MOST_DIRECT", 10)

    found = past.read_past(drawn(machines), policy(), now=NOW + timedelta(hours=5))

    assert found.source.words == (
        "summaries of 2026-03-10 00:00 UTC, which are old; 2 of 26 machines have none"
    )
    assert found.source.uncovered == 2


@pytest.mark.django_db
def test_machines_of_one_unit_are_counted_together() -> None:
    machines = a_fleet_with_a_past(6)
    design = planning.draw_order(
        [
            planning.UnitInput(name, {"site": "a"}, machines=tuple(m.name for m in pair))
            for name, pair in (("p", machines[:3]), ("q", machines[3:]))
        ],
        sizes=[1],
        seed=1,
        salt="x",
        strata=["site"],
    )

    found = past.read_past(
        drawn_from(design, {machine.name: machine.pk for machine in machines}), policy(), now=NOW
    )

    assert (found.units, found.machines) == (2, 6)
    assert found.episodes["faults"].size == 2
    own = past.read_past(drawn(machines), policy(), now=NOW)
    assert found.episodes["faults"].sum() == own.episodes["faults"].sum()
    assert found.fault_rate(policy().guardrails[1]) == own.fault_rate(policy().guardrails[1])
    assert Fault.objects.count() > own.episodes["faults"].sum() > 0


EVENTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 600)), min_size=1, max_size=60
)


@settings(deadline=None, max_examples=150)
@given(events=EVENTS, gap=st.integers(2, 40), cut=st.integers(0, 600))
def test_clusters_merge_into_the_episodes_of_the_single_events(
    events: list[tuple[int, int, int]], gap: int, cut: int
) -> None:
    """In half minutes: of any family, for every gap of a minute or more, and over midnight."""
    parts = []
    for part in ([e for e in events if e[2] < cut], [e for e in events if e[2] >= cut]):
        machine, signature, time = np.array(part, dtype=np.int64).reshape(-1, 3).T
        parts.append(digests.clusters_of(machine, signature, time * MINUTE // 2))
    clusters = Clusters(
        **{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    )

    found = past._starts(clusters, [1, 3], gap=gap * MINUTE // 2)

    expected: list[tuple[int, int]] = []
    last: dict[int, int] = {}
    for key, at in sorted((m, t) for m, s, t in events if s in (1, 3)):
        if key not in last or at - last[key] >= gap:
            expected.append((key, at * MINUTE // 2))
        last[key] = at
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
