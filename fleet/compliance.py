"""Reads: which bundle each machine is meant to run, and how it stands to it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Exists, OuterRef, QuerySet

from fleet.firmware.drift import Drift, Standing, Wanted, drift
from fleet.models import (
    BundleImage,
    Cordon,
    DesiredBundle,
    FirmwareBundle,
    FirmwareImage,
    Machine,
    Platform,
)
from fleet.selectors import versions_now

BATCH = 5000


@dataclass(frozen=True)
class Compliance:
    """One machine against one bundle; a cordon comes first, `drift` says what lies behind it."""

    machine: str
    platform: str
    site: str
    pool: str
    bundle: FirmwareBundle
    standing: Standing
    drift: Standing
    reason: str


@dataclass
class Group:
    """The machines of one platform and pool that are meant to run one bundle."""

    platform: str
    pool: str
    bundle: FirmwareBundle
    machines: int = 0
    counts: Counter[Standing] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Case:
    """What decides about a machine, apart from what it runs."""

    bundle: FirmwareBundle
    wanted: tuple[Wanted, ...]
    platforms: frozenset[int]


def desired_bundles(*, at: datetime | None = None) -> dict[tuple[int, str], int]:
    """Return the bundle that holds per platform and pool; an empty pool means all others."""
    rows = DesiredBundle.objects.order_by("pk")
    if at is not None:
        rows = rows.filter(since__lte=at)
    told = {
        (platform, pool): bundle
        for platform, pool, bundle in rows.values_list("platform_id", "pool", "bundle_id")
    }
    return {place: bundle for place, bundle in told.items() if bundle is not None}


def compliance(
    machines: QuerySet[Machine],
    *,
    bundle: FirmwareBundle | None = None,
    treated: Mapping[int, int] | None = None,
    after: str = "",
    at: datetime | None = None,
) -> Iterator[Compliance]:
    """Yield how each machine stands to what it is meant to run, in order of name.

    Machines of which nothing is wanted are left out; retired ones too. The number of statements
    grows with batches of machines, never with machines.

    Parameters
    ----------
    bundle : FirmwareBundle, optional
        What all of them are held against; by default what `DesiredBundle` says.
    treated : mapping of machine id to bundle id, optional
        What an open rollout has put, or puts, on a machine; it goes before the pool's.
    after : str
        Only machines whose name comes after this one.
    at : datetime, optional
        As of this time: versions and wanted bundles; cordons are the present ones.
    """
    desired = {} if bundle else desired_bundles(at=at)
    cases: dict[int, _Case] = {}
    memory: dict[tuple[int, tuple[tuple[str, str], ...]], Drift] = {}
    for rows in _batches(machines, after=after):
        meant = {row[0]: _meant(row, bundle, desired, treated or {}) for row in rows}
        _learn(cases, {pk for pk in meant.values() if pk is not None})
        kinds = {image.kind for case in cases.values() for image in case.wanted}
        known = [pk for pk, wanted in meant.items() if wanted is not None]
        held = versions_now(known, at=at, kinds=kinds)
        for pk, name, platform_id, platform, site, pool, is_cordoned in rows:
            if (wanted := meant[pk]) is None:
                continue
            case = cases[wanted]
            found = _drift(case, held[pk], platform_id=platform_id, memory=memory)
            standing = Standing.CORDONED if is_cordoned else found.standing
            yield Compliance(
                name, platform, site, pool, case.bundle, standing, found.standing, found.reason
            )


def standing_words() -> QuerySet[DesiredBundle]:
    """Return the words that hold now: of each platform and pool the newest, where it wants one."""
    later = DesiredBundle.objects.filter(
        platform=OuterRef("platform"), pool=OuterRef("pool"), pk__gt=OuterRef("pk")
    )
    newest = DesiredBundle.objects.filter(~Exists(later)).exclude(bundle=None)
    return newest.select_related("platform", "bundle", "actor").order_by("platform__name", "pool")


def would_concern(platform: Platform, *, pool: str) -> QuerySet[Machine]:
    """Return the machines that a word for this pool, or for every other pool, would hold for."""
    machines = Machine.objects.filter(platform=platform)
    if pool:
        return machines.filter(pool=pool)
    own = [name for place, name in desired_bundles() if place == platform.pk and name]
    return machines.exclude(pool__in=own)


def summary(rows: Iterable[Compliance]) -> list[Group]:
    """Count machines per platform, pool and bundle."""
    groups: dict[tuple[str, str, int], Group] = {}
    for row in rows:
        key = (row.platform, row.pool, row.bundle.pk)
        group = groups.setdefault(key, Group(row.platform, row.pool, row.bundle))
        group.machines += 1
        group.counts[row.standing] += 1
    return [groups[key] for key in sorted(groups)]


Row = tuple[int, str, int, str, str, str, bool]


def _batches(machines: QuerySet[Machine], *, after: str) -> Iterator[list[Row]]:
    standing = Cordon.objects.filter(machine_id=OuterRef("pk"), lifted_at=None)
    rows = (
        machines.exclude(state=Machine.State.RETIRED)
        .annotate(is_cordoned=Exists(standing))
        .order_by("name")
        .values_list("pk", "name", "platform_id", "platform__name", "site", "pool", "is_cordoned")
    )
    last = after
    while batch := list(rows.filter(name__gt=last)[:BATCH]):
        yield batch
        last = batch[-1][1]


def _meant(
    row: Row,
    bundle: FirmwareBundle | None,
    desired: Mapping[tuple[int, str], int],
    treated: Mapping[int, int],
) -> int | None:
    if bundle is not None:
        return bundle.pk
    pk, _, platform_id, _, _, pool, _ = row
    fallback = desired.get((platform_id, pool), desired.get((platform_id, "")))
    return treated.get(pk, fallback)


def _learn(cases: dict[int, _Case], wanted: set[int]) -> None:
    missing = wanted - set(cases)
    if not missing:
        return
    places = BundleImage.objects.filter(bundle_id__in=missing).select_related("image")
    images: dict[int, list[FirmwareImage]] = {pk: [] for pk in missing}
    for place in places.order_by("bundle_id", "position"):
        images[place.bundle_id].append(place.image)
    for bundle in FirmwareBundle.objects.filter(pk__in=missing).prefetch_related("platforms"):
        cases[bundle.pk] = _Case(
            bundle=bundle,
            wanted=_wanted(images[bundle.pk]),
            platforms=frozenset(platform.pk for platform in bundle.platforms.all()),
        )


def _wanted(images: Sequence[FirmwareImage]) -> tuple[Wanted, ...]:
    return tuple(Wanted(image.kind, image.version, image.scheme) for image in images)


def _drift(
    case: _Case,
    versions: Mapping[str, str],
    *,
    platform_id: int,
    memory: dict[tuple[int, tuple[tuple[str, str], ...]], Drift],
) -> Drift:
    """Judge a machine; machines that run the same are judged once."""
    if platform_id not in case.platforms:
        return Drift(Standing.INCOMPATIBLE, f"{case.bundle} is not made for this platform")
    key = (case.bundle.pk, tuple(sorted(versions.items())))
    if key not in memory:
        memory[key] = drift(versions, wanted=case.wanted)
    return memory[key]
