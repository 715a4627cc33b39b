"""What makes a wave's comparison impure, and so its widen a matter of advice."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Max, Q, QuerySet

from fleet.models import Change, ChangedMachine
from rollouts import selectors
from rollouts.analysis.suspects import balance_p
from rollouts.lifecycle import WaveStatus
from rollouts.models import Assignment, Membership, Rollout, Wave
from rollouts.models import Contamination as ReadBack
from rollouts.planning.interactions import interacts, words_of

#: A change fell on the arms unevenly where chance alone would do so more rarely than this.
UNEVEN = 0.05
#: Changes of one wave that are listed.
MOST = 20
#: Kinds of reported changes that are themselves words for what they act on.
_TELLING = (Change.Kind.DRIVER, Change.Kind.SWITCH)
#: Written down for the record; they touch neither firmware nor what acts on it.
_HARMLESS = (Change.Kind.RETIREMENT,)


@dataclass(frozen=True)
class Contamination:
    """One change that reached machines of an open comparison, and not by its rollout.

    `matters` where it is a change of the same component, or fell on the arms unevenly.
    """

    what: str
    at: datetime
    canaries: int
    controls: int
    why: str
    matters: bool

    def __str__(self) -> str:
        reached = f"{self.canaries} canaries and {self.controls} controls"
        return f"{self.what} reached {reached}: {self.why}"


def contaminations(wave: Wave) -> list[Contamination]:
    """Return what changed on machines of a wave since it started, the newest first."""
    return contaminations_of([wave])[wave.pk]


def contaminations_of(waves: Sequence[Wave]) -> dict[int, list[Contamination]]:
    """Return the same for each of these waves, by wave; what nothing touched costs no statement."""
    started = {wave.pk: wave for wave in waves if wave.started_at is not None}
    found: dict[int, list[Contamination]] = {wave.pk: [] for wave in waves}
    for pk, one in _read_back(started.values()):
        found[pk].append(one)
    first = min((wave.started_at for wave in started.values() if wave.started_at), default=None)
    if first is not None and _changes(since=first).exists():
        for pk, wave in started.items():
            found[pk] += _reported(wave)
    return {
        pk: sorted(own, key=lambda one: one.at, reverse=True)[:MOST] for pk, own in found.items()
    }


def _changes(*, since: datetime) -> QuerySet[Change]:
    return Change.objects.filter(at__gte=since).exclude(kind__in=_HARMLESS)


def _reported(wave: Wave) -> Iterator[Contamination]:
    touched = list(_touched(wave))
    if not touched:
        return
    sizes = _sizes(wave)
    kinds = selectors.kinds_of(wave.rollout) | set(wave.rollout.bundle.required_pairs)
    for change, counts in touched:
        telling = (change.kind,) if change.kind in _TELLING else ()
        acts = interacts(kinds, changed=(change.what, *telling))
        p = balance_p(counts["canary"], sizes["canary"], counts["control"], sizes["control"])
        is_same = bool(kinds & words_of(change.what)) and change.kind == Change.Kind.FIRMWARE
        evenly = "unevenly" if p < UNEVEN else "as evenly as chance would have it"
        if change.kind == Change.Kind.PART:
            acts = "another part is what shows itself there since"
        if not acts and p >= UNEVEN:
            continue
        yield Contamination(
            what=f"{change.kind} {change}",
            at=change.at,
            canaries=counts["canary"],
            controls=counts["control"],
            why=f"{acts or 'it acts on no component of the bundle'}; it fell {evenly}",
            matters=is_same or p < UNEVEN,
        )


def _touched(wave: Wave) -> Iterator[tuple[Change, dict[str, int]]]:
    """Yield the changes of the wave's time that reached its machines, with how many per arm."""
    if wave.started_at is None:
        return
    made = _changes(since=wave.started_at)
    if wave.finished_at is not None:
        made = made.filter(at__lte=wave.finished_at)
    rows = (
        ChangedMachine.objects.filter(change__in=made)
        .filter(machine__in=wave.members.values("machine"))
        .order_by("change")
        .values("change")
        .annotate(
            canary=Count("pk", filter=Q(machine__in=_arm(wave, Membership.Arm.CANARY))),
            control=Count("pk", filter=Q(machine__in=_arm(wave, Membership.Arm.CONTROL))),
        )
    )
    counts = {row["change"]: {arm: row[arm] for arm in ("canary", "control")} for row in rows}
    for change in made.filter(pk__in=counts):
        yield change, counts[change.pk]


def _arm(wave: Wave, arm: str) -> QuerySet[Membership, Any]:
    return wave.members.filter(arm=arm).values("machine")


def _sizes(wave: Wave) -> dict[str, int]:
    rows = wave.members.order_by().values_list("arm").annotate(n=Count("pk"))
    return {"canary": 0, "control": 0, **dict(rows)}


def _read_back(waves: Iterable[Wave]) -> Iterator[tuple[int, Contamination]]:
    """Yield, by wave, versions that others put onto its machines, as they were read back."""
    rows = (
        ReadBack.objects.filter(wave__in=list(waves))
        .order_by()
        .values("wave", "kind", "version")
        .annotate(
            last=Max("at"),
            canary=Count("machine", filter=Q(arm=Membership.Arm.CANARY), distinct=True),
            control=Count("machine", filter=Q(arm=Membership.Arm.CONTROL), distinct=True),
        )
    )
    for row in rows:
        yield (
            row["wave"],
            Contamination(
                what=f"{row['kind']} {row['version']}",
                at=row["last"],
                canaries=row["canary"],
                controls=row["control"],
                why="it was read back there, and this rollout did not install it",
                matters=True,
            ),
        )


# --- what follows ----------------------------------------------------------------------------


def excluded(wave: Wave) -> QuerySet[Assignment]:
    """Return the wave's canaries that a person has excluded."""
    canaries = wave.members.filter(arm=Membership.Arm.CANARY).values("machine")
    return Assignment.objects.filter(
        rollout=wave.rollout_id, machine__in=canaries, exclusion__isnull=False
    )


def advisory_because(wave: Wave) -> list[str]:
    """Return why the engine may only advise to widen this wave; empty where it may act."""
    if wave.status in (WaveStatus.WIDENED, WaveStatus.SKIPPED):
        return []
    count = excluded(wave).count()
    by_people = [f"{count} of its canaries were excluded by a person"] if count else []
    return by_people + [str(one) for one in contaminations(wave) if one.matters]


def widens_by_itself(wave: Wave) -> bool:
    """Tell whether the engine's widen is carried out without anybody's confirmation."""
    return wave.rollout.mode == Rollout.Mode.AUTOMATIC and not advisory_because(wave)
