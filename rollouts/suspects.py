"""A spike of faults ranks the changes under way by how well they explain it. Observational."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

import numpy as np

from fleet.lifecycle import State
from fleet.models import Change, ChangedMachine, Fault, FaultSignature, Machine
from rollouts.analysis.suspects import Suspicion, suspicion
from rollouts.errors import UnknownSignature
from rollouts.lifecycle import AttemptStatus
from rollouts.models import Attempt, Rollout

#: A change is under way for so long: what was done before is part of how things are.
UNDER_WAY = timedelta(days=7)
#: The spike is compared with so much time before it.
BEFORE = timedelta(days=7)
#: Faults of one machine that follow each other more closely are one episode.
GAP = timedelta(minutes=15)
#: Changes that are weighed; the newest first.
MOST = 100
_NOT_FIRMWARE = (Change.Kind.RETIREMENT,)
_NEVER_TOUCHED = (
    AttemptStatus.QUEUED,
    AttemptStatus.DEFERRED,
    AttemptStatus.DRAINING,
    AttemptStatus.CALLED_OFF,
)


@dataclass(frozen=True)
class Suspect:
    """One change under way, and how well it explains the spike."""

    kind: str
    what: str
    at: datetime
    machines: int
    change: int | None
    rollout: int | None
    seen: Suspicion


@dataclass(frozen=True)
class Lineup:
    """The spike, and the changes under way, the best explanation first."""

    signatures: tuple[str, ...]
    machines: int
    since: datetime
    until: datetime
    events: int
    expected: float
    suspects: tuple[Suspect, ...]


def line_up(signature: str, *, since: datetime, now: datetime) -> Lineup:
    """Rank the changes under way by how well they explain the faults of a signature since then.

    Parameters
    ----------
    signature : str
        A signature, or a pattern such as `xid.*`.
    since : datetime
        When the spike began.
    now : datetime

    Raises
    ------
    UnknownSignature
        If no signature in the catalogue is called so.
    """
    names = _names(signature)
    places = _machines()
    machine, hours = _episodes(names, places, since=since, now=now)
    until = (now - since) / timedelta(hours=1)
    found = []
    for change in _under_way(places, since=since, now=now):
        touched = np.full(len(places), np.inf)
        for pk, at in change.touched.items():
            touched[places[pk]] = (at - since) / timedelta(hours=1)
        seen = suspicion(
            machine,
            hours,
            touched_hours=touched,
            until_hours=until,
            before_hours=BEFORE / timedelta(hours=1),
        )
        found.append(change.suspect(seen))
    found.sort(key=lambda suspect: suspect.seen.rank, reverse=True)
    events = int((hours >= 0).sum())
    before = int((hours < 0).sum())
    return Lineup(
        signatures=tuple(names),
        machines=len(places),
        since=since,
        until=now,
        events=events,
        expected=before * until / (BEFORE / timedelta(hours=1)),
        suspects=tuple(found),
    )


def _names(pattern: str) -> list[str]:
    known = FaultSignature.objects.order_by("name").values_list("name", flat=True)
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not names:
        raise UnknownSignature(
            f"no signature is called {pattern!r}; the catalogue has {len(known)}, such as "
            f"{', '.join(known[:5])}, and patterns such as xid.* are accepted"
        )
    return names


def _machines() -> dict[int, int]:
    """Return the index of each machine of the fleet."""
    here = Machine.objects.exclude(state=State.RETIRED).order_by("pk").values_list("pk", flat=True)
    return {pk: index for index, pk in enumerate(here.iterator(chunk_size=10_000))}


def _episodes(
    names: list[str], places: Mapping[int, int], *, since: datetime, now: datetime
) -> tuple[np.ndarray, np.ndarray]:
    """Return machine and hour of each first fault after a gap, hour 0 being the spike's begin."""
    rows = (
        Fault.objects.filter(
            signature__name__in=names, time__gte=since - BEFORE, time__lt=now, is_ahead=False
        )
        .order_by("machine", "time")
        .values_list("machine_id", "time")
    )
    index, hours = [], []
    last: tuple[int, datetime] | None = None
    for machine, time in rows.iterator(chunk_size=10_000):
        is_same = last is not None and last[0] == machine and time - last[1] <= GAP
        last = (machine, time)
        if not is_same and machine in places:
            index.append(places[machine])
            hours.append((time - since) / timedelta(hours=1))
    return np.array(index, dtype=np.int64), np.array(hours, dtype=np.float64)


@dataclass(frozen=True)
class _UnderWay:
    kind: str
    what: str
    touched: Mapping[int, datetime]
    change: int | None = None
    rollout: int | None = None

    @property
    def began(self) -> datetime:
        return min(self.touched.values())

    def suspect(self, seen: Suspicion) -> Suspect:
        return Suspect(
            kind=self.kind,
            what=self.what,
            at=self.began,
            machines=len(self.touched),
            change=self.change,
            rollout=self.rollout,
            seen=seen,
        )


def _under_way(places: Mapping[int, int], *, since: datetime, now: datetime) -> list[_UnderWay]:
    """Return what touched machines of the fleet, the newest first, whoever did it."""
    found = [
        replace(one, touched=here)
        for one in (*_reported(since, now), *_rollouts(since, now))
        if (here := {pk: at for pk, at in one.touched.items() if pk in places})
    ]
    return sorted(found, key=lambda one: one.began, reverse=True)[:MOST]


def _reported(since: datetime, now: datetime) -> Iterator[_UnderWay]:
    made = Change.objects.filter(at__gte=since - UNDER_WAY, at__lt=now).exclude(
        kind__in=_NOT_FIRMWARE
    )
    for change in made.order_by("-at")[:MOST]:
        machines = ChangedMachine.objects.filter(change=change).values_list("machine", flat=True)
        touched = dict.fromkeys(machines, change.at)
        yield _UnderWay(change.kind, str(change), touched, change=change.pk)


def _rollouts(since: datetime, now: datetime) -> Iterator[_UnderWay]:
    """Yield the rollouts that wrote to machines meanwhile, with when each machine was touched."""
    written = Attempt.objects.filter(started_at__gte=since - UNDER_WAY, started_at__lt=now).exclude(
        status__in=_NEVER_TOUCHED
    )
    rollouts = Rollout.objects.filter(pk__in=written.values("rollout")).select_related("bundle")
    for rollout in rollouts.order_by("-started_at")[:MOST]:
        rows = written.filter(rollout=rollout).order_by("-started_at")
        pairs = rows.values_list("machine_id", "started_at")
        touched = {machine: at for machine, at in pairs if at is not None}  # the first of each
        what = f"{rollout.name}: {rollout.bundle}"
        yield _UnderWay(rollout.kind, what, touched, rollout=rollout.pk)
