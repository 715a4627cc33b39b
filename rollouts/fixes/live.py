"""Rows as the history of a fix: who was fixed when, who was in service, what failed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np
from django.db.models import Min, Q, QuerySet

from fleet.faults import HAPPENED_AT
from fleet.lifecycle import State
from fleet.models import (
    Change,
    ChangedMachine,
    Fault,
    FaultSignature,
    FirmwareBundle,
    FirmwareRecord,
    JobImpact,
    Machine,
    Observation,
    PartSwap,
    Platform,
    Recovery,
    StateChange,
)
from fleet.selectors import machines_matching
from rollouts.analysis.episodes import Events, episodes
from rollouts.analysis.fixes.grid import EARLIER_DAYS
from rollouts.analysis.fixes.history import FixHistory
from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.errors import FixRefused, UnknownSignature
from rollouts.fixes.asked import Asked, Told

#: The window begins so long before the first fix, unless somebody says when.
BEFORE = timedelta(days=28)
#: No window is longer.
LONGEST = timedelta(days=800)
#: Rows that one question reads at most, of each kind.
MOST_ROWS = 2_000_000
GAP_SECONDS = 900.0
EARLIER = timedelta(days=EARLIER_DAYS)
SEVERE = (Recovery.Path.CHECKPOINT.value, Recovery.Path.JOB_LOST.value)
CHUNK = 10_000
#: Of other signatures, those that never count are left out.
NOT_COUNTED = FaultSignature.Kind.NOT_COUNTED
Row = TypeVar("Row")


@dataclass(frozen=True)
class Question:
    """A pattern of faults, and what was done about it: exactly one of change, bundle and part.

    `part` is kind:model of what was swapped in, as `gpu:H100-B2`. Without `since` the window begins
    four weeks before the first fix, without `until` it ends now.
    """

    signatures: tuple[str, ...] = ()
    family: str = ""
    platform: str = ""
    selector: str = ""
    change: int | None = None
    bundle: int | None = None
    part: str = ""
    since: datetime | None = None
    until: datetime | None = None


def ask(question: Question, *, now: datetime) -> Asked:
    """Read everything that answers a question.

    Raises
    ------
    FixRefused
        If it does not say what was done, or that touched no machine, or the window is wrong.
    UnknownSignature
        If no signature of the catalogue is called so.
    SelectorError
        If the selector is malformed or names what nobody carries.
    """
    pattern = _pattern(question)
    words, fixed = _fixes(question)
    since, until = _window(question, fixed, now=now)
    machines = _machines(question)
    rows = list(machines.order_by("pk").values_list("pk", "platform_id", "site"))
    if not rows:
        raise FixRefused("no machine matches; name another platform or selector")
    places = {pk: index for index, (pk, _, _) in enumerate(rows)}
    mine = {pk: at for pk, at in fixed.items() if pk in places and at < until}
    if not mine:
        raise FixRefused(f"{words} touched no such machine before {until.isoformat()}")
    times = np.full(len(rows), math.inf)
    for pk, at in mine.items():
        times[places[pk]] = (at - since).total_seconds()
    reader = _Reader(machines, places, since=since, until=until)
    of_pattern, others, codes, names = reader.faults(pattern)
    interruptions, path, lost, paths, note = reader.interruptions()
    span_machine, span_start, span_end, entered = reader.service()
    cells = {cell: code for code, cell in enumerate(sorted({row[1:] for row in rows}))}
    history = FixHistory(
        window_seconds=(until - since).total_seconds(),
        fixed_seconds=times,
        stratum=np.array([cells[row[1:]] for row in rows], dtype=np.int64),
        entered_seconds=entered,
        span_machine=span_machine,
        span_start_seconds=span_start,
        span_end_seconds=span_end,
        episodes=of_pattern,
        others=others,
        signature=codes,
        signatures=names,
        interruptions=interruptions,
        path=path,
        lost_hours=lost,
        paths=paths,
        severe_paths=SEVERE,
    )
    told = Told(
        fix=words,
        signatures=question.signatures or (f"family {question.family}",),
        since=since,
        until=until,
        platform=question.platform,
        selector=question.selector,
        detectors=reader.detectors(),
        notes=(note,) if note else (),
    )
    return Asked(history, told)


# --- the question --------------------------------------------------------------------------------


def _pattern(question: Question) -> frozenset[int]:
    """Return the keys of the signatures that are meant."""
    if bool(question.signatures) == bool(question.family):
        raise FixRefused(
            "name the faults by signatures (as xid.*) or by one family; one of the two"
        )
    known = list(FaultSignature.objects.order_by("name").values_list("pk", "name", "family"))
    if question.family:
        found = {pk for pk, _, family in known if family == question.family}
        if not found:
            families = sorted({family for _, _, family in known if family})
            raise UnknownSignature(
                f"no signature is of family {question.family!r}; families: {', '.join(families)}"
            )
        return frozenset(found)
    chosen: set[int] = set()
    for glob in question.signatures:
        found = {pk for pk, name, _ in known if fnmatchcase(name, glob)}
        if not found:
            raise UnknownSignature(
                f"no signature is called {glob!r}; the catalogue has {len(known)}, such as "
                f"{', '.join(name for _, name, _ in known[:5])}"
            )
        chosen |= found
    return frozenset(chosen)


def _machines(question: Question) -> QuerySet[Machine]:
    machines = machines_matching(question.selector) if question.selector else Machine.objects.all()
    if question.platform:
        if not Platform.objects.filter(name=question.platform).exists():
            raise FixRefused(f"no platform is called {question.platform!r}")
        machines = machines.filter(platform__name=question.platform)
    return machines


def _window(
    question: Question, fixed: dict[int, datetime], *, now: datetime
) -> tuple[datetime, datetime]:
    until = min(question.until or now, now)
    first = min(fixed.values())
    since = question.since or max(first - BEFORE, until - LONGEST)
    if since >= until:
        raise FixRefused(
            f"the window would begin at {since.isoformat()} and end at {until.isoformat()}; "
            "its end has to lie after its begin and cannot be still to come"
        )
    if until - since > LONGEST:
        raise FixRefused(f"the window is {(until - since).days} days long; {LONGEST.days} are read")
    return since, until


# --- what was done, and when to each machine -----------------------------------------------------


def _fixes(question: Question) -> tuple[str, dict[int, datetime]]:
    """Return the fix in words, and when each machine got it."""
    given = [
        name
        for name, value in (
            ("change", question.change),
            ("bundle", question.bundle),
            ("part", question.part),
        )
        if value
    ]
    if len(given) != 1:
        raise FixRefused(
            f"say what was done by one of change, bundle and part; got {', '.join(given) or 'none'}"
        )
    words, fixed = {"change": _changed, "bundle": _running, "part": _swapped}[given[0]](question)
    if not fixed:
        raise FixRefused(f"{words} touched no machine")
    return words, fixed


def _changed(question: Question) -> tuple[str, dict[int, datetime]]:
    change = Change.objects.filter(pk=question.change or 0).first()
    if change is None:
        raise FixRefused(f"there is no change {question.change}")
    touched = ChangedMachine.objects.filter(change=change).values_list("machine", flat=True)
    return f"{change.kind} {change}", dict.fromkeys(touched, change.at)


def _running(question: Question) -> tuple[str, dict[int, datetime]]:
    """Return when each machine ran every image of the bundle that it has a component for."""
    bundle = FirmwareBundle.objects.filter(pk=question.bundle or 0).first()
    if bundle is None:
        raise FixRefused(f"there is no bundle {question.bundle}")
    wanted = dict(bundle.images.values_list("kind", "version"))
    active = FirmwareRecord.objects.filter(stage=FirmwareRecord.Stage.ACTIVE, kind__in=wanted)
    first: dict[int, dict[tuple[str, str], datetime | None]] = defaultdict(dict)
    seen = active.values_list("machine", "kind", "slot", "version").annotate(at=Min("since"))
    for machine, kind, slot, version, at in seen.order_by().iterator(chunk_size=CHUNK):
        place = first[machine]
        if version == wanted[kind]:
            place[kind, slot] = at
        else:
            place.setdefault((kind, slot), None)
    reached = {
        machine: [at for at in places.values() if at is not None]
        for machine, places in first.items()
        if all(at is not None for at in places.values())
    }
    return f"bundle {bundle}", {machine: max(times) for machine, times in reached.items()}


def _swapped(question: Question) -> tuple[str, dict[int, datetime]]:
    kind, _, model = question.part.partition(":")
    if not (kind and model):
        raise FixRefused(f"{question.part!r} is no part; write kind:model, as gpu:H100-B2")
    swaps = PartSwap.objects.filter(kind=kind, new_model=model).exclude(new_serial="")
    first = swaps.order_by().values_list("machine").annotate(at=Min("at"))
    return f"part {kind} {model}", dict(first)


# --- what happened -------------------------------------------------------------------------------


class _Reader:
    """Reads rows of the chosen machines as arrays; second 0 is the window's begin."""

    def __init__(
        self,
        machines: QuerySet[Machine],
        places: dict[int, int],
        *,
        since: datetime,
        until: datetime,
    ) -> None:
        self.chosen = machines.order_by().values("pk")
        self.places = places
        self.since = since
        self.until = until

    def seconds(self, at: datetime) -> float:
        return (at - self.since).total_seconds()

    def faults(self, pattern: frozenset[int]) -> tuple[Events, Events, IntArray, tuple[str, ...]]:
        """Return episodes of the pattern, of the other signatures, their codes and names."""
        rows = (
            Fault.objects.filter(machine__in=self.chosen)
            .annotate(at=HAPPENED_AT)
            .filter(at__gte=self.since - EARLIER, at__lt=self.until)
            .exclude(Q(signature__kind=NOT_COUNTED) & ~Q(signature__in=pattern))
            .order_by()
            .values_list("machine", "signature", "at")
        )
        mine: list[tuple[int, float]] = []
        rest: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for machine, signature, at in _bounded(rows.iterator(chunk_size=CHUNK), "faults"):
            place = (self.places[machine], self.seconds(at))
            (mine if signature in pattern else rest[signature]).append(place)
        known = dict(FaultSignature.objects.filter(pk__in=rest).values_list("pk", "name"))
        order = sorted(rest, key=lambda pk: known[pk])
        found = [_episodes(rest[pk]) for pk in order]
        codes = [np.full(one.machine.size, code) for code, one in enumerate(found)]
        return (
            _episodes(mine),
            Events(
                _joined([one.machine for one in found], np.int64),
                _joined([one.time_seconds for one in found], np.float64),
            ),
            _joined(codes, np.int64),
            tuple(known[pk] for pk in order),
        )

    def interruptions(self) -> tuple[Events, IntArray, FloatArray, tuple[str, ...], str]:
        """Return interruptions, as reported; where those aged out, the impacts on jobs."""
        told = list(_bounded(self._recoveries(), "recoveries"))
        note = ""
        if not told:
            told = list(_bounded(self._impacts(), "impacts on jobs"))
            note = "lost work is in accelerator-hours, from incidents" if told else ""
        paths = tuple(sorted({path for _, _, path, _ in told}))
        code = {path: index for index, path in enumerate(paths)}
        return (
            Events(
                np.array([row[0] for row in told], dtype=np.int64),
                np.array([row[1] for row in told], dtype=np.float64),
            ),
            np.array([code[row[2]] for row in told], dtype=np.int64),
            np.array([row[3] for row in told], dtype=np.float64),
            paths,
            note,
        )

    def _recoveries(self) -> Iterator[tuple[int, float, str, float]]:
        rows = (
            Recovery.objects.filter(
                machine__in=self.chosen,
                time__gte=self.since,
                time__lt=self.until,
                recovered_at__isnull=False,
                is_ahead=False,
            )
            .order_by()
            .values_list("machine", "time", "path", "recovery_seconds", "repeated_seconds")
        )
        for machine, time, path, recovery, repeated in rows.iterator(chunk_size=CHUNK):
            known = [value for value in (recovery, repeated) if value is not None]
            lost = sum(known) / 3_600.0 if known else math.nan
            yield self.places[machine], self.seconds(time), path, lost

    def _impacts(self) -> Iterator[tuple[int, float, str, float]]:
        rows = (
            JobImpact.objects.filter(
                incident__machine__in=self.chosen,
                fault_at__gte=self.since,
                fault_at__lt=self.until,
                corrected_by=None,
            )
            .exclude(outcome=JobImpact.Outcome.NO_JOB)
            .order_by()
            .values_list("incident__machine", "fault_at", "outcome", "accelerator_hours_lost")
        )
        for machine, time, path, lost in rows.iterator(chunk_size=CHUNK):
            hours = math.nan if lost is None else lost
            yield self.places[machine], self.seconds(time), path, hours

    def service(self) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """Return times in service from the changes of state, and when each machine first was."""
        end = self.seconds(self.until)
        entered = np.full(len(self.places), math.nan)
        spans: list[tuple[int, float, float]] = []
        moves = (
            StateChange.objects.filter(machine__in=self.chosen, at__lt=self.until)
            .order_by("machine", "at", "pk")
            .values_list("machine", "old_state", "new_state", "at")
        )
        since: dict[int, float] = {}
        moved: set[int] = set()
        begun = self._registered()
        for machine, old, new, at in moves.iterator(chunk_size=CHUNK):
            place = self.places[machine]
            if machine not in moved and old == State.IN_SERVICE:  # it was registered so
                since[place] = begun[machine][0]
                entered[place] = begun[machine][0]
            moved.add(machine)
            if place in since and new != State.IN_SERVICE:
                spans.append((place, since.pop(place), self.seconds(at)))
            elif new == State.IN_SERVICE and place not in since:
                since[place] = self.seconds(at)
                entered[place] = np.fmin(entered[place], self.seconds(at))
        for machine, (begin, is_working) in begun.items():
            if machine not in moved and is_working:
                place = self.places[machine]
                since[place] = entered[place] = begin
        spans += [(place, begin, end) for place, begin in since.items() if begin < end]
        return (
            np.array([span[0] for span in spans], dtype=np.int64),
            np.array([span[1] for span in spans], dtype=np.float64),
            np.array([span[2] for span in spans], dtype=np.float64),
            entered,
        )

    def _registered(self) -> dict[int, tuple[float, bool]]:
        """Return since when each machine is known, and whether it works at present."""
        rows = Machine.objects.filter(pk__in=self.chosen)
        return {
            pk: (self.seconds(at), state == State.IN_SERVICE)
            for pk, at, state in rows.values_list("pk", "registered_at", "state")
        }

    def detectors(self) -> tuple[str, ...]:
        """Return the detectors' versions that reported in the window."""
        seen = Observation.objects.filter(
            machine__in=self.chosen, end__gte=self.since, end__lt=self.until
        )
        names = seen.exclude(detector="").order_by().values_list("detector", flat=True).distinct()
        return tuple(sorted(names))


def _bounded(rows: Iterable[Row], what: str) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number >= MOST_ROWS:
            raise FixRefused(
                f"more than {MOST_ROWS:,} {what} are in the window; name a shorter one, a platform "
                "or a selector"
            )
        yield row


def _episodes(rows: Sequence[tuple[int, float]]) -> Events:
    ordered = sorted(set(rows))
    events = Events(
        np.array([machine for machine, _ in ordered], dtype=np.int64),
        np.array([time for _, time in ordered], dtype=np.float64),
    )
    return episodes(events, gap_seconds=GAP_SECONDS)


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts).astype(kind) if parts else np.empty(0, dtype=kind)
