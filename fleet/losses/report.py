"""How much work got done in some days, and what interruptions cost: by kind, cause, path, day."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from fleet import goodput
from fleet.faults import COUNTED_KINDS, COUNTED_SEVERITIES
from fleet.goodput import TARGETS, Figure
from fleet.losses.impacts import Asked, Cell, Loss, cells_of
from fleet.losses.jobs import JobRow, costliest_jobs
from fleet.losses.service import Time, Times, times_of
from fleet.models import Incident


@dataclass(frozen=True)
class Kind:
    """One kind of job (empty: not told): available and lost accelerator-hours, and the share."""

    name: str
    machine_hours: float
    available: float
    loss: Loss
    goodput: Figure
    target: float | None

    @property
    def is_at_most(self) -> bool:
        return self.loss.unknown > 0

    @property
    def is_met(self) -> bool | None:
        """Tell whether the target is met; None where there is none, or it cannot be told."""
        if self.target is None or self.goodput.value is None:
            return None
        if self.goodput.value < self.target:
            return False
        return None if self.is_at_most else True


@dataclass(frozen=True)
class Cut:
    """The impacts of one cause or path: their loss, its share of what is known, their rate."""

    name: str
    loss: Loss
    share: Figure
    per_thousand_days: Figure


@dataclass(frozen=True)
class Bin:
    """One day or week: what was available, what was lost by cause and by path."""

    since: date
    until: date
    available: float
    loss: Loss
    goodput: Figure
    by_cause: Mapping[str, float]
    by_path: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """How much work got done in some days, and what interruptions cost."""

    asked: Asked
    total: Kind
    kinds: Sequence[Kind]
    causes: Sequence[Cut]
    paths: Sequence[Cut]
    bins: Sequence[Bin]
    jobs: Sequence[JobRow]
    failures: int
    rate: Figure


def report(asked: Asked, *, now: datetime) -> Report:
    """Return how much work got done, what was lost by kind, cause, path and over time.

    An impact counts on the day of its fault. What was told of a loss nobody can reckon counts in
    `unknown`, and the share is at most what it says.
    """
    cells, times = list(cells_of(asked)), times_of(asked)
    whole = Loss()
    for cell in cells:
        whole.add(cell.loss)
    kinds = _by(cells, "job_kind")
    failures = _failures(asked)
    return Report(
        asked=asked,
        total=_kind(asked.job_kind or "all", times.whole, whole),
        kinds=[
            _kind(name, times.by_kind[name], kinds.get(name, Loss()))
            for name in sorted({*kinds, *times.by_kind}, key=lambda name: (name == "", name))
        ],
        causes=_cuts(_by(cells, "cause"), whole=whole, times=times),
        paths=_cuts(_by(cells, "path"), whole=whole, times=times),
        bins=list(_bins(asked, cells, times)),
        jobs=costliest_jobs(asked, now=now),
        failures=failures,
        rate=goodput.rate_per_machine_day(
            events=failures, machine_hours=times.of_all_kinds.machine_hours
        ),
    )


def _kind(name: str, available: Time, loss: Loss) -> Kind:
    return Kind(
        name=name,
        machine_hours=available.machine_hours,
        available=available.accelerator_hours,
        loss=loss,
        goodput=goodput.goodput_share(available=available.accelerator_hours, lost=loss.hours),
        target=TARGETS.get(name),
    )


def _cuts(found: Mapping[str, Loss], *, whole: Loss, times: Times) -> list[Cut]:
    return [
        Cut(
            name=name,
            loss=loss,
            share=goodput.share(loss.hours, whole=whole.hours, of="known loss"),
            per_thousand_days=_per_thousand(loss.impacts, times.whole.machine_hours),
        )
        for name, loss in sorted(found.items(), key=lambda row: (-row[1].hours, row[0]))
    ]


def _per_thousand(events: int, machine_hours: float) -> Figure:
    rate = goodput.rate_per_machine_day(events=events, machine_hours=machine_hours)
    return Figure(None if rate.value is None else 1000 * rate.value, rate.formula, rate.reason)


def _bins(asked: Asked, cells: Sequence[Cell], times: Times) -> Iterator[Bin]:
    """Yield days, or weeks that begin with the first day; the last may be shorter."""
    length = 7 if asked.per == "week" else 1
    of_day: dict[date, list[Cell]] = defaultdict(list)
    for cell in cells:
        of_day[cell.day].append(cell)
    first = asked.since
    while first <= asked.until:
        last = min(first + timedelta(days=length - 1), asked.until)
        days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        own = [cell for day in days for cell in of_day.get(day, ())]
        whole = Loss()
        for cell in own:
            whole.add(cell.loss)
        available = sum(times.by_day[day].accelerator_hours for day in days if day in times.by_day)
        yield Bin(
            since=first,
            until=last,
            available=available,
            loss=whole,
            goodput=goodput.goodput_share(available=available, lost=whole.hours),
            by_cause={name: loss.hours for name, loss in _by(own, "cause").items()},
            by_path={name: loss.hours for name, loss in _by(own, "path").items()},
        )
        first = last + timedelta(days=1)


def _failures(asked: Asked) -> int:
    """Count the incidents that count, each standing for itself."""
    return Incident.objects.filter(
        asked.places("machine__"),
        opened_at__gte=asked.begin,
        opened_at__lt=asked.end,
        kind__in=COUNTED_KINDS,
        severity__in=COUNTED_SEVERITIES,
        merged_into=None,
        parent=None,
    ).count()


def _by(cells: Iterable[Cell], name: str) -> dict[Any, Loss]:
    found: dict[Any, Loss] = defaultdict(Loss)
    for cell in cells:
        found[getattr(cell, name)].add(cell.loss)
    return found
