"""What interruptions cost and how much work got done: formulas and printed definitions. Pure.

What a formula needs and nobody recorded gives None with the reason, never 0. Shares lie in [0, 1].
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

HOUR_SECONDS = 3600.0
DAY_HOURS = 24.0
#: Shares that the source of the project is measured by, per kind of job.
TARGETS: Mapping[str, float] = {"pre_training": 0.85, "reinforcement_learning": 0.90}


def noop(text: str) -> str:
    """Mark a text for translation; pages translate it where they print it."""
    return text


_ = noop
#: What each printed number means, by its name in the API.
DEFINITIONS: Mapping[str, str] = {
    "goodput": _(
        "Useful accelerator-hours / available accelerator-hours. Available: time in service that "
        "machines reported, times the accelerators of their platform. Useful: available less what "
        "impacts lost. Impacts whose loss is not known take nothing off: then the share is at most "
        "this."
    ),
    "lost": _(
        "Accelerator-hours lost, each impact once, pre-empted jobs included. Checkpoint: (recovery "
        "+ repeated work) x accelerators of the whole job. Replica: stall of all x accelerators of "
        "the job + (restart + repeated work) x accelerators of its replicas. Degraded: slowdown x "
        "duration x accelerators. Job lost: (work lost + time until resumed, if it did) x "
        "accelerators. Continued, no job: 0."
    ),
    "repeated": _(
        "Work done twice: seconds repeated x accelerators of the whole job; from steps, (step at "
        "the fault - step resumed from) x mean step time."
    ),
    "second_order": _(
        "The part that was lost by jobs which made room for an interrupted one; it is in the total."
    ),
    "ettr": _(
        "Effective training time ratio R / W: productive time over W = queue + R + unproductive "
        "time (recovery and repeated work). Where nobody records queues, it is at most this."
    ),
    "expected_ettr": _(
        "(1 - N r (u + c/2)) / (1 + w/c): N machines, r failures per machine-day, u restart, c "
        "time between checkpoints, w time to write one, in days."
    ),
    "mttf": _("Mean time to failure of a job: 1 / (N r), N machines, r failures per machine-day."),
    "checkpoint_interval": _(
        "Young and Daly: the time between checkpoints that costs least, sqrt(2 w / (N r))."
    ),
    "failure_rate": _(
        "Incidents that count (hard or unknown, major or critical, standing for themselves) per "
        "machine-day in service."
    ),
    "mttr": _(
        "From out of service to released, of machines that were released in the time; its parts "
        "are of stays that ended in it. Median and 90th percentile: the mean hides the long tail."
    ),
    "availability": _("Machine-time in service / machine-time installed, by the kept days' ends."),
    "qualified": _(
        "Machines that may take work and are past their watch period / machines installed, by the "
        "kept days' ends."
    ),
}


@dataclass(frozen=True)
class Figure:
    """A number, or None with the reason why there is none; `formula` names what it follows."""

    value: float | None
    formula: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Interruption:
    """What was told of one effect on one job; None: not told.

    Parameters
    ----------
    outcome : str
        As `JobImpact.Outcome`.
    accelerators : int or None
        Of the whole job.
    recovery_seconds : float or None
        From the fault to the first productive step; of a degraded job, how long it was slow.
    repeated_seconds : float or None
        Work that was done twice; of a lost job, the work that is lost.
    stall_seconds : float or None
        How long all replicas stood still.
    slowdown : float or None
        Share of throughput lost while degraded, in [0, 1].
    """

    outcome: str
    accelerators: int | None = None
    recovery_seconds: float | None = None
    repeated_seconds: float | None = None
    stall_seconds: float | None = None
    replicas_affected: int | None = None
    replicas_total: int | None = None
    slowdown: float | None = None


_KINDS: Mapping[str, str] = {
    "pretraining": "pre_training",
    "reinforcementlearning": "reinforcement_learning",
    "rl": "reinforcement_learning",
    "finetuning": "fine_tuning",
    "inference": "inference",
    "serving": "inference",
}


def job_kind(workload: str) -> str:
    """Return the kind of job that a workload's name means: empty if there is none, else `other`.

    Examples
    --------
    >>> job_kind("Pre-Training"), job_kind("rendering"), job_kind("")
    ('pre_training', 'other', '')
    """
    letters = "".join(letter for letter in workload.casefold() if letter.isalnum())
    return _KINDS.get(letters, "other") if letters else ""


# --- what one interruption cost ---------------------------------------------------------------


def accelerator_hours_lost(told: Interruption) -> Figure:
    """Return the accelerator-hours that one interruption lost, by the formula of its outcome.

    Returns
    -------
    Figure
        Accelerator-hours; None where a number that the formula needs was not told, with its name.

    Raises
    ------
    ValueError
        If the outcome has no formula.

    Notes
    -----
    Replica path after FT-HSDP [1]_, where only the failed replica restarts and the others stand
    still for a part of that time; checkpoint path as the repeated work of [2]_ plus the time until
    the first productive step. Accelerators that a lost job leaves idle are not counted: the
    scheduler gives them to others.

    References
    ----------
    .. [1] Fault-tolerant hybrid sharded data parallelism, arXiv 2602.00277.
    .. [2] Revisiting reliability in large-scale machine learning research clusters, arXiv
       2410.21680.

    Examples
    --------
    >>> told = Interruption("job_restarted_from_checkpoint", 1024, 600.0, 1800.0)
    >>> round(accelerator_hours_lost(told).value, 1)  # 1024 x 2400 s
    682.7
    >>> accelerator_hours_lost(Interruption("job_restarted_from_checkpoint", 1024, 600.0)).reason
    'repeated_seconds was not told'
    """
    if told.outcome not in _FORMULAS:
        known = ", ".join(_FORMULAS)
        raise ValueError(f"{told.outcome!r} has no formula; known outcomes: {known}")
    formula, needed = _FORMULAS[told.outcome]
    missing = [name for name in needed if getattr(told, name) is None]
    if missing:
        were = "was" if len(missing) == 1 else "were"
        return Figure(None, formula, f"{', '.join(missing)} {were} not told")
    return Figure(_lost_seconds(told) / HOUR_SECONDS, formula)


#: Name of the formula, and what it needs, by outcome.
_FORMULAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "continued": ("continued: 0", ()),
    "no_job": ("no job: 0", ()),
    "degraded": (
        "degraded: slowdown x duration",
        ("slowdown", "recovery_seconds", "accelerators"),
    ),
    "replica_restarted": (
        "replica: stall x all + restart x replica",
        (
            "stall_seconds",
            "recovery_seconds",
            "replicas_affected",
            "replicas_total",
            "accelerators",
        ),
    ),
    "job_restarted_from_checkpoint": (
        "checkpoint: (recovery + repeated) x all",
        ("recovery_seconds", "repeated_seconds", "accelerators"),
    ),
    "job_lost": ("lost: (work + idle) x all", ("repeated_seconds", "accelerators")),
}


def _lost_seconds(told: Interruption) -> float:
    """Return accelerator-seconds; everything that the outcome's formula needs is there."""
    own = told.accelerators or 0
    recovery, repeated = told.recovery_seconds or 0.0, told.repeated_seconds or 0.0
    if told.outcome == "degraded":
        return (told.slowdown or 0.0) * recovery * own
    if told.outcome == "replica_restarted":
        share = (told.replicas_affected or 0) / (told.replicas_total or 1)
        return (told.stall_seconds or 0.0) * own + (recovery + repeated) * own * share
    if told.outcome in ("job_restarted_from_checkpoint", "job_lost"):
        return (recovery + repeated) * own
    return 0.0


def repeated_accelerator_hours(
    *, step_at_fault: int, step_resumed: int, step_seconds: float, accelerators: int
) -> float:
    """Return the accelerator-hours of work that was done twice.

    Raises
    ------
    ValueError
        If the job resumed from a later step than it failed at.

    Examples
    --------
    >>> repeated_accelerator_hours(
    ...     step_at_fault=12_800, step_resumed=12_600, step_seconds=90.0, accelerators=384
    ... )
    1920.0
    """
    if step_resumed > step_at_fault:
        raise ValueError(f"resumed from step {step_resumed}, after step {step_at_fault} it failed")
    return (step_at_fault - step_resumed) * step_seconds * accelerators / HOUR_SECONDS


# --- how much work got done -------------------------------------------------------------------


def goodput_share(*, available: float, lost: float) -> Figure:
    """Return useful over available accelerator-hours.

    Returns
    -------
    Figure
        In [0, 1]; None without available hours, and where more was lost than was available: then
        the two do not speak of the same machines or time.

    Examples
    --------
    >>> goodput_share(available=1000.0, lost=120.0).value
    0.88
    >>> goodput_share(available=0.0, lost=5.0).reason
    'no accelerator-hours in service were reported'
    """
    if available <= 0:
        return Figure(None, "goodput", "no accelerator-hours in service were reported")
    if lost > available:
        said = f"{lost:.0f} accelerator-hours lost of {available:.0f} that were reported"
        return Figure(None, "goodput", f"{said}: telemetry of the rest is missing")
    return Figure(1 - lost / available, "goodput")


def ettr(
    *,
    productive_seconds: float,
    unproductive_seconds: float,
    queue_seconds: float | None = None,
) -> Figure:
    """Return the effective training time ratio R / W of a job or of many.

    Parameters
    ----------
    productive_seconds, unproductive_seconds : float
        R, and recovery with repeated work.
    queue_seconds : float or None
        Eligible and waiting; None: not recorded, so that the ratio is an upper bound, and says so.

    References
    ----------
    .. [1] arXiv 2410.21680, section on effective training time.

    Examples
    --------
    >>> ettr(productive_seconds=80.0, unproductive_seconds=15.0, queue_seconds=5.0).value
    0.8
    >>> ettr(productive_seconds=80.0, unproductive_seconds=20.0).reason
    'at most: queue time is not recorded'
    """
    wall = productive_seconds + unproductive_seconds + (queue_seconds or 0.0)
    if wall <= 0:
        return Figure(None, "ettr", "no time of the job was recorded")
    bound = "" if queue_seconds is not None else "at most: queue time is not recorded"
    return Figure(productive_seconds / wall, "ettr", bound)


def expected_ettr(
    *,
    machines: float,
    failures_per_machine_day: float,
    restart_minutes: float,
    checkpoint_minutes: float,
    write_minutes: float = 0.0,
) -> Figure:
    """Return the ratio that a job of this size can expect.

    Parameters
    ----------
    restart_minutes : float
        From a failure to the first productive step, u.
    checkpoint_minutes, write_minutes : float
        Between checkpoints, and to write one.

    Returns
    -------
    Figure
        In [0, 1]; None where failures come so fast that the approximation gives nothing.

    Notes
    -----
    (1 - N r (u + c/2)) / (1 + w/c) [1]_, within about 5 % of a Monte Carlo simulation there. It
    assumes independent failures at a constant rate, on average half an interval of work lost, and
    N r (u + c/2) well below 1.

    References
    ----------
    .. [1] arXiv 2410.21680.

    Examples
    --------
    A job of 2,000 machines, checkpoints every hour, 5 minutes to restart:

    >>> rate = 3.8e-3
    >>> round(expected_ettr(machines=2000, failures_per_machine_day=rate, restart_minutes=5.0,
    ...                     checkpoint_minutes=60.0).value, 3)
    0.815
    """
    if checkpoint_minutes <= 0:
        return Figure(None, "expected_ettr", "checkpoints have to lie apart")
    per_minute = machines * failures_per_machine_day / (DAY_HOURS * 60)
    kept = 1 - per_minute * (restart_minutes + checkpoint_minutes / 2)
    if kept <= 0:
        said = f"one failure in {1 / per_minute:.0f} minutes leaves no time for work"
        return Figure(None, "expected_ettr", said)
    return Figure(kept / (1 + write_minutes / checkpoint_minutes), "expected_ettr")


def mttf_hours(*, machines: float, failures_per_machine_day: float) -> Figure:
    """Return the mean time to failure of a job on so many machines.

    Examples
    --------
    >>> round(mttf_hours(machines=2048, failures_per_machine_day=6.5e-3).value, 1)
    1.8
    >>> mttf_hours(machines=2048, failures_per_machine_day=0.0).reason
    'no failure was seen'
    """
    if machines <= 0 or failures_per_machine_day <= 0:
        return Figure(None, "mttf", "no failure was seen")
    return Figure(DAY_HOURS / (machines * failures_per_machine_day), "mttf")


def young_daly_minutes(
    *, machines: float, failures_per_machine_day: float, write_minutes: float
) -> Figure:
    """Return the time between checkpoints that loses least.

    References
    ----------
    .. [1] J. W. Young, Communications of the ACM 17 (1974) 530-531.
    .. [2] J. T. Daly, Future Generation Computer Systems 22 (2006) 303-312.

    Examples
    --------
    >>> round(young_daly_minutes(
    ...     machines=2048, failures_per_machine_day=6.5e-3, write_minutes=1.0).value, 1)
    14.7
    """
    mttf = mttf_hours(machines=machines, failures_per_machine_day=failures_per_machine_day)
    if mttf.value is None:
        return Figure(None, "checkpoint_interval", mttf.reason)
    if write_minutes <= 0:
        return Figure(None, "checkpoint_interval", "a checkpoint takes some time to write")
    return Figure(math.sqrt(2 * write_minutes * mttf.value * 60), "checkpoint_interval")


def rate_per_machine_day(*, events: int, machine_hours: float) -> Figure:
    """Return events per machine-day.

    Examples
    --------
    >>> round(1000 * rate_per_machine_day(events=419, machine_hours=110_592 * 24.0).value, 2)
    3.79
    """
    if machine_hours <= 0:
        return Figure(None, "failure_rate", "no machine-hours in service were reported")
    return Figure(events * DAY_HOURS / machine_hours, "failure_rate")


def share(part: float, *, whole: float, of: str) -> Figure:
    """Return a part of a whole; None of nothing, and of a whole that is less than its part.

    Examples
    --------
    >>> round(share(148, whole=419, of="interruptions").value, 3)
    0.353
    """
    if whole <= 0:
        return Figure(None, "share", f"no {of} in this time")
    if part > whole * (1 + 1e-9):
        return Figure(None, "share", f"{part:g} of {whole:g}: some of the {of} is not recorded")
    return Figure(min(part / whole, 1.0), "share")


def shares(counts: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield each class with its share of all, the largest first; nothing where all is nothing.

    Examples
    --------
    >>> list(shares({"gpu": 3, "nic": 1}))
    [('gpu', 0.75), ('nic', 0.25)]
    """
    whole = sum(counts.values())
    for name, count in sorted(counts.items(), key=lambda row: (-row[1], row[0])):
        if whole > 0:
            yield name, count / whole
