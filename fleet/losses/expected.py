"""What a job of a size can expect at the failure rate that was seen."""

from dataclasses import dataclass

import numpy as np
from django.db.models import F

from fleet import goodput
from fleet.columns import Seconds, read_columns
from fleet.goodput import Figure
from fleet.losses.impacts import Asked, impacts
from fleet.losses.report import Report
from fleet.models import JobImpact

#: Job whose expected ratio is shown where nobody asks for another: 1,024 accelerators, 8 each.
EXPECTED_MACHINES = 128
CHECKPOINT_MINUTES = 60.0


@dataclass(frozen=True)
class Expected:
    """What a job of a size can expect at the failure rate that was seen."""

    machines: int
    checkpoint_minutes: float
    write_minutes: float | None
    restart_minutes: Figure
    ettr: Figure
    mttf_hours: Figure
    checkpoint_interval_minutes: Figure


def expected(
    seen: Report,
    *,
    machines: int,
    checkpoint_minutes: float,
    write_minutes: float | None = None,
    restart_minutes: float | None = None,
) -> Expected:
    """Return what a job of a size can expect at the failure rate of a report.

    The restart is the median of the checkpoint path in the same time unless it is given.
    """
    restart = _restart(seen.asked) if restart_minutes is None else Figure(restart_minutes, "given")
    rate = seen.rate
    if rate.value is None:
        nothing = Figure(None, "expected_ettr", rate.reason)
        return Expected(
            machines, checkpoint_minutes, write_minutes, restart, nothing, nothing, nothing
        )
    per_day = rate.value
    return Expected(
        machines=machines,
        checkpoint_minutes=checkpoint_minutes,
        write_minutes=write_minutes,
        restart_minutes=restart,
        ettr=Figure(None, "expected_ettr", restart.reason)
        if restart.value is None
        else goodput.expected_ettr(
            machines=machines,
            failures_per_machine_day=per_day,
            restart_minutes=restart.value,
            checkpoint_minutes=checkpoint_minutes,
            write_minutes=write_minutes or 0.0,
        ),
        mttf_hours=goodput.mttf_hours(machines=machines, failures_per_machine_day=per_day),
        checkpoint_interval_minutes=Figure(
            None, "checkpoint_interval", "the time to write a checkpoint was not given"
        )
        if write_minutes is None
        else goodput.young_daly_minutes(
            machines=machines, failures_per_machine_day=per_day, write_minutes=write_minutes
        ),
    )


def _restart(asked: Asked) -> Figure:
    took = (
        impacts(asked)
        .filter(outcome=JobImpact.Outcome.CHECKPOINT, resumed_at__isnull=False)
        .order_by()
    )
    (seconds,), _ = read_columns(took, numbers=(Seconds(F("resumed_at")) - Seconds(F("fault_at")),))
    if not seconds.size:
        return Figure(None, "restart", "no restart from a checkpoint has ended in this time")
    return Figure(float(np.median(seconds)) / 60, "restart")
