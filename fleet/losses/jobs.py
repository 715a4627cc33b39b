"""The jobs that lost the most, and the share of its time that each could use."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, F, FloatField, Sum
from django.db.models.functions import Cast

from fleet import goodput
from fleet.goodput import Figure
from fleet.losses.impacts import Asked, Loss, impacts
from fleet.models import Job

MOST_JOBS = 20


@dataclass(frozen=True)
class JobRow:
    """One job with what it lost, and its effective training time ratio."""

    job: str
    job_kind: str
    loss: Loss
    ettr: Figure


def costliest_jobs(asked: Asked, *, now: datetime) -> list[JobRow]:
    """Return the jobs that lost the most, and their effective training time ratio."""
    own_time = F("accelerator_hours_lost") / Cast("accelerators", FloatField())
    rows = (
        impacts(asked)
        .exclude(job="")
        .order_by()
        .values_list("job", "job_kind")
        .annotate(
            impacts=Count("pk"),
            told=Count("accelerator_hours_lost"),
            hours=Sum("accelerator_hours_lost"),
            own=Sum(own_time, output_field=FloatField()),
            timed=Count(own_time),
        )
        .order_by(F("hours").desc(nulls_last=True), "-impacts", "job")[:MOST_JOBS]
    )
    told = list(rows)
    spans = {
        name: (started, ended)
        for name, started, ended in Job.objects.filter(name__in=[row[0] for row in told])
        .order_by()
        .values_list("name", "started_at", "ended_at")
    }
    return [
        JobRow(
            job=job,
            job_kind=kind,
            loss=Loss(impacts=count, unknown=count - known, hours=hours or 0.0),
            ettr=_job_ettr(spans.get(job), asked, lost=own, untimed=count - timed, now=now),
        )
        for job, kind, count, known, hours, own, timed in told
    ]


def _job_ettr(
    span: tuple[datetime | None, datetime | None] | None,
    asked: Asked,
    *,
    lost: float | None,
    untimed: int,
    now: datetime,
) -> Figure:
    started, ended = span or (None, None)
    if started is None:
        return Figure(None, "ettr", "when the job began is not known")
    wall = (min(ended or now, asked.end, now) - max(started, asked.begin)) / timedelta(hours=1)
    if lost is None:
        return Figure(None, "ettr", "of none of its interruptions the loss is known")
    if lost > wall:
        return Figure(None, "ettr", "it was interrupted before the time that is known of it")
    found = goodput.ettr(productive_seconds=(wall - lost) * 3600, unproductive_seconds=lost * 3600)
    if not untimed:
        return found
    said = f"{found.reason}; the loss of {untimed} interruptions is not known"
    return Figure(found.value, found.formula, said)
