"""The past of a hundred thousand machines is read from summaries, in a second."""

import resource
import time
from datetime import timedelta

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet import services, summaries
from fleet.models import FaultSignature, Machine, Observation, TelemetrySummary
from fleet.telemetry import digests
from rollouts import planning, policies
from rollouts.services.evidence import past
from rollouts.services.evidence.drawn import drawn_from
from rollouts.services.plans.forecast import forecast_plan
from tests.factories import NOW, make_platform
from tests.rollouts.plans import bundle_of, document

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.timeout(600)]

MACHINES = 100_000
GUARDRAILS = [
    {"metric": "faults", "signatures": ["xid.*"], "required": "auto"},
    {"metric": "faults", "signatures": ["host.*"], "required": "auto"},
    {"metric": "throughput", "required": True},
    {"metric": "recovery_time", "required": "auto"},
    {"metric": "lost_work", "required": False},
    {"metric": "install", "required": "auto"},
]


def machines_with_summaries(signatures: list[int]) -> dict[str, int]:
    """Machines with 14 days of summaries: a workload of their rack, .2 faults a day."""
    platform = make_platform()
    Machine.objects.bulk_create(
        [
            Machine(
                name=f"n{number:06}",
                platform=platform,
                state="in_service",
                may_take_work=True,
                entered_at=NOW,
                registered_at=NOW - timedelta(days=90),
            )
            for number in range(MACHINES)
        ],
        batch_size=5_000,
    )
    ids = dict(Machine.objects.values_list("name", "pk"))
    keys = np.array(sorted(ids.values()))
    rng = np.random.default_rng(1)
    size = TelemetrySummary.MACHINES
    rows = []
    for first in np.unique(keys // size) * size:
        own = keys[(keys >= first) & (keys < first + size)]
        for back in range(summaries.DAYS):
            day = NOW.date() - timedelta(days=back)
            rows.append(
                TelemetrySummary(
                    day=day,
                    first_machine=first,
                    last_machine=own.max(),
                    as_of=NOW if back < 2 else NOW - timedelta(days=back - 2),
                    reports_from=summaries.day_start(day),
                    content=digests.pack(a_day(own, day, signatures, rng), first_machine=first),
                )
            )
    TelemetrySummary.objects.bulk_create(rows, batch_size=50)
    return ids


def a_day(keys: np.ndarray, day, signatures: list[int], rng: np.random.Generator):
    n, faults = keys.size, rng.poisson(0.2 * keys.size)
    start = past.microseconds(summaries.day_start(day))
    interrupted = rng.choice(keys, size=max(n // 20, 1), replace=False)
    ones = np.ones(interrupted.size)
    return digests.Digest(
        reports=digests.Reports(
            machine=keys,
            part=np.zeros(n, dtype=np.int64),
            workload=keys // 32 % 5,
            mean=rng.normal(1, 0.02, n).round(9),
            count=np.full(n, 24),
            covered_seconds=np.full(n, 86_400.0),
            service_seconds=np.full(n, 86_400.0),
        ),
        clusters=digests.clusters_of(
            rng.choice(keys, size=faults),
            rng.choice(signatures, size=faults),
            start + rng.integers(0, 86_400_000_000, faults),
        ),
        interruptions=digests.Interruptions(
            machine=np.sort(interrupted),
            path=rng.integers(0, 3, interrupted.size),
            count=ones.astype(np.int64),
            closed=ones.astype(np.int64),
            log_sum=6 * ones,
            log_squares=36.5 * ones,
            lost_hours=0.3 * ones,
            lost_roots=0.5 * ones,
        ),
        workloads=("a", "b", "c", "d", "e"),
        paths=("continued", "job_restarted_from_checkpoint", "replica_restarted"),
    )


def test_a_hundred_thousand_machines_are_forecast_in_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [f"{family}.{number}" for family in ("xid", "host") for number in range(20)]
    signatures = [FaultSignature.objects.get_or_create(name=name)[0].pk for name in names]
    ids = machines_with_summaries(signatures)
    plan = policies.plan_from(
        document(
            selector="platform=dgx-h100",
            guardrails=GUARDRAILS,
            waves=[{"count": n, "window_hours": 72} for n in (100, 1_000, 20_000, 60_000)],
            resamples=19_999,
        )
    )
    design = planning.draw_order(
        [planning.UnitInput(name, {"site": name[-1]}) for name in ids],
        sizes=[100, 1_000, 20_000, 60_000],
        seed=1,
        salt="x",
        strata=["site"],
    )
    policy = policies.policy_from(plan, kind=policies.Kind.PLAN)
    bundle = bundle_of("bmc")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    # Seconds of this process: others that are at work on the same cores do not count.
    began = time.process_time()
    drawn = drawn_from(design, ids)
    ordered = time.process_time()
    with CaptureQueriesContext(connection) as queries:
        found = past.read_past(drawn, policy, now=NOW)
    read = time.process_time()
    words = forecast_plan(plan, design, drawn=drawn, bundle_id=bundle.pk, created_at=NOW, now=NOW)
    done = time.process_time()

    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    with capsys.disabled():
        print(
            f"\n{connection.vendor}: order {ordered - began:.2f} s, past {read - ordered:.2f} s, "
            f"{len(queries)} statements; forecast with the past {done - read:.2f} s; "
            f"peak memory grown by {grown} MiB"
        )
    assert found.source.words == f"summaries of {NOW:%Y-%m-%d %H:%M} UTC"
    assert found.machines == MACHINES
    assert sum(counts.sum() for counts in found.episodes.values()) == pytest.approx(
        0.2 * MACHINES * found.days, rel=0.05
    )
    assert len(queries) <= 6
    assert read - ordered < 1.0
    assert done - read < 3.0
    assert all("not forecast" not in str(word) for word in words)


def test_a_day_of_a_whole_range_is_summed_up_in_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    platform = make_platform()
    size = TelemetrySummary.MACHINES
    first = (max(Machine.objects.values_list("pk", flat=True), default=0) // size + 1) * size
    Machine.objects.bulk_create(
        [
            Machine(
                pk=first + number,
                name=f"n{number:06}",
                platform=platform,
                state="in_service",
                may_take_work=True,
                entered_at=NOW,
                registered_at=NOW - timedelta(days=90),
            )
            for number in range(size)
        ],
        batch_size=2_000,
    )
    start = summaries.day_start(NOW.date())
    hours = [start + timedelta(hours=hour) for hour in range(13)]
    Observation.objects.bulk_create(
        [
            Observation(
                machine_id=first + number,
                start=begin,
                end=begin + timedelta(hours=1),
                in_service_seconds=3600,
                throughput=1.0,
                workload="a",
                source="t",
                source_key=f"{number}/{begin:%H}",
                received_at=NOW,
            )
            for number in range(size)
            for begin in hours[:-1]
        ],
        batch_size=5_000,
    )

    began = time.perf_counter()
    services.summarise(now=NOW)
    seconds = time.perf_counter() - began

    with capsys.disabled():
        print(
            f"\n{connection.vendor}: 14 days of {size} machines, one with reports: {seconds:.1f} s"
        )
    assert seconds < 10
