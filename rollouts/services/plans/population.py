"""Whom a plan reaches: the machines that it may draw, and why each other one is left out.

Read as rows, not as model instances: a plan may reach a hundred thousand machines. What many
machines share (their place, their versions) is one object.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import Case, Count, F, QuerySet, Value, When, Window
from django.db.models.functions import RowNumber

from fleet import selectors as fleet_selectors
from fleet.firmware.reach import Image
from fleet.lifecycle import State
from fleet.models import (
    BundleImage,
    Cordon,
    Fault,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
    Machine,
)
from rollouts import planning
from rollouts.lifecycle import FAILURES, Status
from rollouts.models import Assignment, Attempt, Rollout
from rollouts.planning.readiness import Readiness, readiness

#: Faults that far back decide a machine's class of recent faults.
RECENT = timedelta(days=14)
#: A rollout in one of these keeps its machines to itself.
HOLDS_MACHINES = (
    Status.AWAITING_APPROVAL,
    Status.APPROVED,
    Status.RUNNING,
    Status.PAUSED,
    Status.HALTED,
    Status.ROLLING_BACK,
)
#: Machines that are named where only their number is given in full.
MOST_NAMED = 10
_CHUNK = 10_000


class Place(NamedTuple):
    """Where a machine stands and what runs on it."""

    platform: str
    site: str
    pool: str
    rack: str
    chassis: str
    power_domain: str
    nvlink_domain: str
    leaf: str
    job: str
    workload: str


class Member(NamedTuple):
    """One machine that may be drawn."""

    pk: int
    name: str
    place: Place
    labels: Mapping[str, str]
    versions: Mapping[str, str]
    irreversible: str


@dataclass
class Group:
    """How many machines something is true of, and the first of them by name."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.first) < MOST_NAMED:
            self.first.append(name)

    @property
    def named(self) -> str:
        more = ", …" if self.count > len(self.first) else ""
        return f"{', '.join(self.first)}{more}"


@dataclass(frozen=True)
class Conflict:
    """Another rollout that has some of these machines; it blocks if it writes the same parts."""

    rollout: str
    rollout_id: int
    status: str
    kinds: tuple[str, ...]
    blocks: bool
    machines: Group


@dataclass(frozen=True)
class Population:
    """Who may be drawn, by name; who is left out, by reason; who else has these machines.

    `current` are those that run the bundle already. `unfit` are the reasons that only another
    bundle or another selector mends: a platform that is not covered, a floor that is violated,
    versions that cannot be ordered. `kinds` and `domains` are what the bundle's images are for and
    what they activate, in its order.
    """

    members: Sequence[Member]
    excluded: Mapping[str, Group]
    current: frozenset[str]
    unfit: frozenset[str]
    irreversible: Mapping[str, Group]
    conflicts: Sequence[Conflict]
    kinds: Sequence[str]
    domains: Sequence[str]

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]


def read_population(
    bundle: FirmwareBundle, selector: str, *, besides: int | None, keys: Sequence[str] = ()
) -> Population:
    """Sort the machines of a selector into who may be drawn and who is left out, and why.

    `besides` is the rollout that plans; what it holds itself is no conflict. `keys` are the
    fields or labels that units and strata are made of.
    """
    selected = fleet_selectors.machines_matching(selector)
    places = bundle.places.order_by("position")
    images = list(places.values_list("image__kind", "image__activation_domain"))
    kinds = [kind for kind, _ in images]
    versions = present_versions(selected, kinds=kinds)
    ready = _readiness(bundle, versions.values())
    left_out = _LeftOut.of(bundle)
    members: list[Member] = []
    excluded: dict[str, Group] = {}
    irreversible: dict[str, Group] = {}
    unfit: set[str] = set()
    current: set[str] = set()
    for pk, name, state, works, labels, place in _rows(
        selected, has_labels=not set(keys) <= _NO_LABELS
    ):
        present = versions.get(pk, _NOTHING)
        why = left_out.why(pk, state=state, works=works, platform=place.platform)
        is_unfit = place.platform not in left_out.platforms
        if not why:
            why = ready.blocked.get(id(present), "")
            is_unfit = bool(why)
        if not why and id(present) in ready.current:
            why = "runs the bundle already"
            current.add(name)
        if why:
            excluded.setdefault(why, Group()).add(name)
            if is_unfit:
                unfit.add(why)
            continue
        stuck = ready.irreversible.get(id(present), "")
        if stuck:
            irreversible.setdefault(stuck, Group()).add(name)
        members.append(Member(pk, name, place, labels, present, stuck))
    return Population(
        members=members,
        excluded=excluded,
        current=frozenset(current),
        unfit=frozenset(unfit),
        irreversible=irreversible,
        conflicts=_conflicts(members, kinds=kinds, bundle=bundle, besides=besides),
        kinds=kinds,
        domains=[domain for _, domain in images],
    )


def _rows(
    selected: QuerySet[Machine], *, has_labels: bool
) -> Iterator[tuple[int, str, str, bool, Mapping[str, str], Place]]:
    """Read the machines by name; machines that stand alike share one `Place`.

    Labels are read where somebody asks for one: decoding them costs more than all the rest.
    """
    places: dict[tuple[str, ...], Place] = {}
    rows = selected.order_by("name").values_list(
        "pk",
        "name",
        "state",
        "may_take_work",
        "platform__name",
        *Place._fields[1:],
        *(["labels"] if has_labels else []),
    )
    last = 4 + len(Place._fields)
    for row in rows.iterator(chunk_size=_CHUNK):
        key = row[4:last]
        place = places.get(key)
        if place is None:
            place = places[key] = Place(*key)
        yield row[0], row[1], row[2], row[3], row[last] if has_labels else _NOTHING, place


_NOTHING: Mapping[str, str] = {}
#: Keys of strata and units that are no labels.
_NO_LABELS = frozenset({*Place._fields, "machine", "name", "from_version", "recent_faults"})
#: Units of which each machine is one.
_OWN_NAMES = frozenset({"machine", "name"})


# --- who is left out ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _LeftOut:
    """What keeps single machines out of a plan, read in a few statements for all of them."""

    platforms: frozenset[str]
    bundle: str
    declined: frozenset[int]
    cordons: Mapping[int, str]

    @classmethod
    def of(cls, bundle: FirmwareBundle) -> "_LeftOut":
        owners: dict[int, list[str]] = {}
        standing = Cordon.objects.filter(lifted_at=None).order_by("owner")
        for machine, owner in standing.values_list("machine_id", "owner"):
            owners.setdefault(machine, []).append(owner)
        return cls(
            platforms=frozenset(bundle.platforms.values_list("name", flat=True)),
            bundle=str(bundle),
            declined=frozenset(declined(bundle).values_list("machine_id", flat=True)),
            cordons={
                machine: f"cordoned by {', '.join(dict.fromkeys(names))}"
                for machine, names in owners.items()
            },
        )

    def why(self, pk: int, *, state: str, works: bool, platform: str) -> str:
        """Say why a machine is left out, or nothing."""
        if platform not in self.platforms:
            return f"platform {platform} is not covered by bundle {self.bundle}"
        if state != State.IN_SERVICE:
            return f"not in service: {state}"
        if pk in self.declined:
            return f"failed or left bundle {self.bundle} before, and nobody has cleared it"
        if pk in self.cordons:
            return self.cordons[pk]
        return "" if works else "may take no work"


def declined(bundle: FirmwareBundle) -> QuerySet[Attempt]:
    """Return the attempts that failed or after which their machine fell back, until cleared."""
    return Attempt.objects.filter(
        rollout__bundle=bundle,
        rollout__kind=Rollout.Kind.UPDATE,
        status__in=FAILURES,
        clearance=None,
    )


def _conflicts(
    members: Sequence[Member], *, kinds: Sequence[str], bundle: FirmwareBundle, besides: int | None
) -> list[Conflict]:
    """Return the other rollouts that have some of these machines, by name.

    Two rollouts may share machines where they write different parts that do not depend on each
    other: both draw their canaries at random, so neither tips the balance of the other's arms.
    """
    others = Rollout.objects.filter(status__in=HOLDS_MACHINES)
    if besides is not None:
        others = others.exclude(pk=besides).exclude(parent=besides)
    wanted = {member.pk: member.name for member in members}
    found = []
    for other in others.select_related("bundle").order_by("name"):
        held = Group()
        own = Assignment.objects.filter(rollout=other).values_list("machine_id", flat=True)
        for name in sorted(wanted[pk] for pk in own.iterator(chunk_size=_CHUNK) if pk in wanted):
            held.add(name)
        if held.count:
            theirs = tuple(other.bundle.places.values_list("image__kind", flat=True))
            found.append(
                Conflict(
                    rollout=other.name,
                    rollout_id=other.pk,
                    status=other.status,
                    kinds=theirs,
                    blocks=_interact(bundle, kinds, other.bundle, theirs),
                    machines=held,
                )
            )
    return found


def _interact(
    bundle: FirmwareBundle, kinds: Sequence[str], other: FirmwareBundle, theirs: Sequence[str]
) -> bool:
    """Tell whether two bundles write the same kind of part, or one depends on the other's."""
    return bool(
        set(kinds) & set(theirs)
        or set(bundle.required_pairs) & set(theirs)
        or set(other.required_pairs) & set(kinds)
    )


# --- versions ----------------------------------------------------------------------------------


def present_versions(
    selected: QuerySet[Machine], *, kinds: Sequence[str]
) -> dict[int, Mapping[str, str]]:
    """Return the active versions of these kinds per machine; equal ones are one object.

    Keyed by kind, with a number for each further version where parts of one kind differ. A part
    on whose version the witnesses disagree says `disputed`, which equals no version.
    """
    latest = (
        FirmwareRecord.objects.filter(
            machine__in=selected.values("pk"), stage=FirmwareRecord.Stage.ACTIVE, kind__in=kinds
        )
        .annotate(
            age=Window(
                RowNumber(),
                partition_by=["machine_id", "kind", "slot"],
                order_by=[F("since").desc(), F("pk").desc()],
            )
        )
        .filter(age=1)
        .exclude(version="", is_disputed=False)
        .annotate(said=Case(When(is_disputed=True, then=Value("disputed")), default="version"))
        .order_by("machine_id", "kind", "said")
        .values_list("machine_id", "kind", "said")
    )
    found: dict[int, Mapping[str, str]] = {}
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    for pk, parts in _by_machine(latest.iterator(chunk_size=_CHUNK)):
        known = shared.get(parts)
        if known is None:
            known = shared[parts] = _keyed(parts)
        found[pk] = known
    return found


def _by_machine(
    rows: Iterable[tuple[int, str, str]],
) -> Iterator[tuple[int, tuple[tuple[str, str], ...]]]:
    machine: int | None = None
    parts: list[tuple[str, str]] = []
    for pk, kind, version in rows:
        if pk != machine:
            if machine is not None:
                yield machine, tuple(parts)
            machine, parts = pk, []
        if (kind, version) not in parts:  # parts of one kind that run alike are one
            parts.append((kind, version))
    if machine is not None:
        yield machine, tuple(parts)


def _keyed(parts: Sequence[tuple[str, str]]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for kind, version in parts:
        further = sum(1 for key in versions if key.split("/")[0] == kind)
        versions[f"{kind}/{further}" if further else kind] = version
    return versions


def _readiness(bundle: FirmwareBundle, versions: Iterable[Mapping[str, str]]) -> Readiness[int]:
    """Judge each different set of versions once; keyed by the identity of the shared object."""
    images = {
        pk: _image(row)
        for pk, *row in FirmwareImage.objects.values_list("pk", *_IMAGE_FIELDS).iterator()
    }
    order = BundleImage.objects.filter(bundle=bundle).order_by("position")
    different = {id(present): present for present in versions}
    different[id(_NOTHING)] = _NOTHING
    return readiness(
        different,
        bundle=[images[pk] for pk in order.values_list("image_id", flat=True)],
        images=list(images.values()),
    )


_IMAGE_FIELDS = (
    "kind",
    "version",
    "scheme",
    "vendor",
    "activation",
    "is_downgrade_allowed",
    "floor_version",
)


def _image(row: Sequence[Any]) -> Image:
    return Image(**dict(zip(_IMAGE_FIELDS, row, strict=True)))


# --- units -------------------------------------------------------------------------------------


def units_of(
    population: Population,
    *,
    unit: str,
    keys: tuple[str, ...],
    kinds: Sequence[str],
    faults: Mapping[int, int],
) -> list[planning.UnitInput]:
    """Return the placement units of a population with the values that strata are made of."""
    values = _Values(keys=keys, kinds=kinds, faults=faults)
    if unit == "machine":
        return [planning.UnitInput(m.name, values.of(m)) for m in population.members]
    groups: dict[str, list[Member]] = {}
    for member in population.members:
        groups.setdefault(_field(member, unit) or member.name, []).append(member)
    return [
        planning.UnitInput(
            name=name,
            fields={
                key: "+".join(sorted({values.of(member)[key] for member in group})) for key in keys
            },
            machines=tuple(member.name for member in group),
        )
        for name, group in groups.items()
    ]


def unknown_keys(
    population: Population, *, unit: str, strata: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield what the plan calls unit or stratum and no selected machine has.

    Each machine would be a unit of its own then, or all of them one stratum, and nobody asked for
    that.
    """
    if unit not in _OWN_NAMES and not any(_field(member, unit) for member in population.members):
        yield "unit", unit
    for key in strata:
        if key not in _NO_LABELS and not any(key in member.labels for member in population.members):
            yield "strata", key


class _Values:
    """The stratum values of machines; those of machines that are alike are one object."""

    def __init__(
        self, *, keys: tuple[str, ...], kinds: Sequence[str], faults: Mapping[int, int]
    ) -> None:
        self.keys, self.kinds, self.faults = keys, kinds, faults
        self.is_alike = set(keys) <= _NO_LABELS - {"machine", "name"}
        # Two names at least, so that it always returns a tuple.
        self.place_of = attrgetter("platform", "platform", *(set(keys) & set(Place._fields)))
        self.seen: dict[tuple[tuple[str, ...], int, int], dict[str, str]] = {}

    def of(self, member: Member) -> dict[str, str]:
        if not self.is_alike:
            return self._values(member)
        faults = min(self.faults.get(member.pk, 0), planning.MANY_FAULTS)
        key = (self.place_of(member.place), id(member.versions), faults)
        found = self.seen.get(key)
        if found is None:
            found = self.seen[key] = self._values(member)
        return found

    def _values(self, member: Member) -> dict[str, str]:
        known = {
            "recent_faults": lambda: planning.recent_fault_class(self.faults.get(member.pk, 0)),
            "from_version": lambda: from_version(member.versions, self.kinds),
        }
        return {key: known[key]() if key in known else _field(member, key) for key in self.keys}


def from_version(present: Mapping[str, str], kinds: Sequence[str]) -> str:
    """Name the present version of each kind; parts of one kind may run several.

    Examples
    --------
    >>> from_version({"bmc": "1.0", "gpu": "96.0", "gpu/1": "97.0"}, ["bmc", "gpu"])
    'bmc 1.0, gpu 96.0/97.0'
    """
    return ", ".join(
        f"{kind} {'/'.join(sorted({v for k, v in present.items() if k.split('/')[0] == kind}))}"
        for kind in kinds
    )


def _field(member: Member, key: str) -> str:
    if key == "machine" or key == "name":
        return member.name
    return str(getattr(member.place, key, "") or member.labels.get(key, ""))


def recent_faults(selector: str, *, as_of: datetime) -> dict[int, int]:
    """Count the faults of the period before, per machine, of what was known at that time."""
    faults = Fault.objects.filter(
        machine__in=fleet_selectors.machines_matching(selector).values("pk"),
        time__gt=as_of - RECENT,
        time__lte=as_of,
        received_at__lte=as_of,
    )
    counts = faults.order_by("machine").values_list("machine").annotate(n=Count("pk"))
    return dict(counts.iterator(chunk_size=_CHUNK))
