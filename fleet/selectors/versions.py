"""Which versions machines ran, run and wait for."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery, Value, Window
from django.db.models.functions import Coalesce, Lag, Rank

from fleet.bulk import batches
from fleet.firmware.history import Change
from fleet.firmware.versions import Scheme, is_same, spellings
from fleet.models import FirmwareImage, FirmwareRecord, Machine

LOOK_UP = 5000


@dataclass(frozen=True)
class Interval:
    """One version of one component from `since` to `until` (None: still)."""

    kind: str
    slot: str
    stage: str
    version: str
    spelt: str
    since: datetime
    until: datetime | None
    source: str
    is_disputed: bool


@dataclass(frozen=True)
class Run:
    """A machine that ran a version of a component from `since` to `until` (None: still)."""

    machine: Machine
    slot: str
    version: str
    since: datetime
    until: datetime | None


def versions_now(
    machine_ids: Collection[int],
    *,
    stage: str = FirmwareRecord.Stage.ACTIVE,
    at: datetime | None = None,
    kinds: Collection[str] | None = None,
) -> dict[int, dict[str, str]]:
    """Return per machine the version of each component, keyed `kind` or `kind/slot`.

    With `at`, those that held at that time; with `kinds`, components of these kinds only.

    Where BMC and host disagree, the value says so (`disputed: bmc 4.1, host 4.2`) and so equals
    no version. Components of which nothing is known are left out.
    """
    return {
        pk: versions
        for some in batches(sorted(machine_ids), size=LOOK_UP)
        for pk, versions in _latest(some, stage=stage, at=at, kinds=kinds).items()
    }


def versions_as_of(
    machine: Machine, *, at: datetime, stage: str = FirmwareRecord.Stage.ACTIVE
) -> dict[str, str]:
    """Return the version of each component of a machine at a time, as `versions_now` does."""
    return _latest([machine.pk], stage=stage, at=at)[machine.pk]


def _latest(
    machine_ids: Sequence[int],
    *,
    stage: str,
    at: datetime | None = None,
    kinds: Collection[str] | None = None,
) -> dict[int, dict[str, str]]:
    records = FirmwareRecord.objects.filter(machine_id__in=machine_ids, stage=stage)
    if kinds is not None:
        records = records.filter(kind__in=kinds)
    if at is not None:
        records = records.filter(since__lte=at)
    last = records.annotate(
        rank=Window(Rank(), partition_by=["machine_id", "kind", "slot"], order_by=F("since").desc())
    ).filter(rank=1)
    rows = last.order_by("machine_id", "kind", "slot", "pk").values_list(
        "machine_id", "kind", "slot", "version", "source", "is_disputed"
    )
    versions: dict[int, dict[str, str]] = {pk: {} for pk in machine_ids}
    for (pk, kind, slot), group in groupby(rows, key=itemgetter(0, 1, 2)):
        if said := _said([row[3:] for row in group]):
            versions[pk][f"{kind}/{slot}" if slot else kind] = said
    return versions


def _said(told: Sequence[tuple[str, str, bool]]) -> str:
    """Return what (version, source, is disputed) say: the last one, or both of a dispute."""
    version, _, is_disputed = told[-1]
    if not is_disputed:
        return version
    claims = [f"{source} {claim or 'nothing'}" for claim, source, disputed in told if disputed]
    return f"disputed: {', '.join(claims)}"


def history(machine: Machine, *, as_of: datetime | None = None) -> list[Interval]:
    """Return the version history of a machine, oldest first within each component and stage."""
    records = machine.firmware.order_by("kind", "slot", "stage", "since", "pk")
    if as_of is not None:
        records = records.filter(since__lte=as_of)
    schemes = version_schemes(set(records.order_by().values_list("kind", flat=True)))
    return [
        Interval(
            kind=record.kind,
            slot=record.slot,
            stage=record.stage,
            version=record.version,
            spelt=spellings(record.version, scheme=schemes.get(record.kind, Scheme.PLAIN)),
            since=record.since,
            until=until,
            source=record.source,
            is_disputed=record.is_disputed,
        )
        for record, until in _with_ends(records, key=lambda r: (r.kind, r.slot, r.stage))
    ]


def who_ran(
    kind: str,
    version: str,
    *,
    start: datetime,
    end: datetime,
    stage: str = FirmwareRecord.Stage.ACTIVE,
    after: str = "",
    limit: int | None = None,
) -> list[Run]:
    """Return which machines ran a version at some time in [start, end), and from when to when.

    A disputed version counts: who asks wants every machine that may have run it. Every spelling
    of the version counts, by the scheme of the kind. In order of machine and slot; with a `limit`
    at most that many machines, those whose names come after `after`.
    """
    records = FirmwareRecord.objects.filter(kind=kind, stage=stage)
    spelt = _spelt(records, version, kind=kind)
    carriers = records.filter(version__in=spelt, since__lt=end)
    if limit is not None:
        carriers = carriers.filter(pk__in=_that_last_past(carriers, start))
        names = carriers.filter(machine__name__gt=after).order_by("machine__name")
        page = list(names.values_list("machine__name", flat=True).distinct()[:limit])
        carriers = carriers.filter(machine__name__in=page)
    rows = (
        records.filter(machine_id__in=carriers.values("machine_id"))
        .select_related("machine")
        .order_by("machine__name", "slot", "since", "pk")
    )
    return [
        Run(record.machine, record.slot, record.version, record.since, until)
        for record, until in _with_ends(rows, key=lambda r: (r.machine_id, r.slot))
        if record.version in spelt and record.since < end and (until is None or until > start)
    ]


@dataclass(frozen=True)
class Waiting:
    """A version that is staged on a part and does not run yet."""

    machine: str
    kind: str
    slot: str
    staged: str
    since: datetime
    active: str


def staged_versions(*, kind: str = "", after: str = "", limit: int | None = None) -> list[Waiting]:
    """Return what is staged and has not become active since, in order of machine and part.

    With a `limit` at most that many machines, those whose names come after `after`.
    """
    stages = FirmwareRecord.Stage
    part = {name: OuterRef(name) for name in ("machine_id", "kind", "slot")}
    same_part = FirmwareRecord.objects.filter(**part)
    active = same_part.filter(stage=stages.ACTIVE)
    rows = FirmwareRecord.objects.filter(
        ~Exists(same_part.filter(stage=stages.STAGED, since__gt=OuterRef("since"))),
        ~Exists(active.filter(version=OuterRef("version"), since__gte=OuterRef("since"))),
        stage=stages.STAGED,
        machine__name__gt=after,
    ).exclude(version="")
    if kind:
        rows = rows.filter(kind=kind)
    newest = Subquery(active.order_by("-since", "-pk").values("version")[:1])
    rows = rows.annotate(active=Coalesce(newest, Value(""))).exclude(version=F("active"))
    if limit is not None:
        names = rows.order_by("machine__name").values_list("machine__name", flat=True)
        rows = rows.filter(machine__name__in=list(names.distinct()[:limit]))
    columns = ("machine__name", "kind", "slot", "version", "since", "active")
    return [Waiting(*row) for row in rows.order_by(*columns[:3]).values_list(*columns)]


def _spelt(records: QuerySet[FirmwareRecord], version: str, *, kind: str) -> set[str]:
    """Return the version as it is spelt, and the other spellings that records hold."""
    scheme = version_schemes([kind]).get(kind, Scheme.PLAIN)
    if scheme == Scheme.PLAIN:
        return {version}
    held = records.values_list("version", flat=True).distinct().order_by()
    return {version, *(one for one in held if is_same(one, version, scheme=scheme))}


def _that_last_past(records: QuerySet[FirmwareRecord], start: datetime) -> QuerySet[Any]:
    """Return the keys of the records that no later one of the same part ends by `start`."""
    later = FirmwareRecord.objects.filter(
        machine_id=OuterRef("machine_id"),
        kind=OuterRef("kind"),
        slot=OuterRef("slot"),
        stage=OuterRef("stage"),
        since__gt=OuterRef("since"),
        since__lte=start,
    )
    return records.filter(~Exists(later)).values("pk")


def version_schemes(kinds: Collection[str]) -> dict[str, str]:
    """Return the version scheme of each kind, where its images agree on one."""
    pairs = set(FirmwareImage.objects.filter(kind__in=kinds).values_list("kind", "scheme"))
    known = [kind for kind, _ in pairs]
    return {kind: scheme for kind, scheme in pairs if known.count(kind) == 1}


def version_changes(
    *, kinds: Collection[str] = (), start: datetime | None = None, end: datetime | None = None
) -> list[Change]:
    """Return each step of an active version to another known one, in [start, end); all by default.

    What is only spelt in another way is no change, and neither is what is disputed or follows
    upon something that was.
    """
    records = FirmwareRecord.objects.filter(stage=FirmwareRecord.Stage.ACTIVE)
    if kinds:
        records = records.filter(kind__in=kinds)
    if end is not None:
        records = records.filter(since__lt=end)
    steps = (
        records.annotate(old=_before("version"), was_disputed=_before("is_disputed"))
        .filter(old__isnull=False, is_disputed=False, was_disputed=False)
        .exclude(Q(old="") | Q(version="") | Q(old=F("version")))
        .order_by()
        .values_list(
            "machine__name",
            "machine__site",
            "machine__pool",
            "kind",
            "slot",
            "old",
            "version",
            "since",
        )
    )
    schemes = version_schemes(kinds) if kinds else version_schemes(_recorded_kinds())
    return [
        change
        for change in map(Change._make, steps.iterator(chunk_size=LOOK_UP))
        if (start is None or change.at >= start) and not _is_respelt(change, schemes)
    ]


def _before(column: str) -> Window:
    """Return what a column held in the record before, of the same part."""
    part = ["machine_id", "kind", "slot"]
    return Window(Lag(column), partition_by=part, order_by=["since", "pk"])


def _recorded_kinds() -> list[str]:
    return list(FirmwareRecord.objects.order_by().values_list("kind", flat=True).distinct())


def _is_respelt(change: Change, schemes: Mapping[str, str]) -> bool:
    scheme = schemes.get(change.kind, Scheme.PLAIN)
    return is_same(change.old, change.new, scheme=scheme)


def _with_ends(
    records: Iterable[FirmwareRecord], *, key: Callable[[FirmwareRecord], tuple[object, ...]]
) -> Iterator[tuple[FirmwareRecord, datetime | None]]:
    """Pair each record with the time of the next later one of its group."""
    for _, group in groupby(records, key=key):
        own = list(group)
        times = sorted({record.since for record in own})
        ends = dict(zip(times, [*times[1:], None], strict=True))
        for record in own:
            yield record, ends[record.since]
