"""Who stands where: installed, qualified, in service, canary, cordoned, per platform and pool."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from django.db.models import Count, Q, QuerySet

from fleet import adapters, queues
from fleet.capacity.days import day_over, events, kept_before
from fleet.lifecycle import State
from fleet.models import CapacityDay, Cordon, Machine, Platform
from fleet.tally import Place, by_day


@dataclass
class Standing:
    """The machines of one platform and pool; None: nobody measured it then."""

    platform: str
    pool: str
    counts: Counter[str] = field(default_factory=Counter)
    canary: int | None = None
    cordoned: int | None = None
    qualified: int | None = None

    @property
    def installed(self) -> int:
        """Every machine that has not retired."""
        return sum(n for state, n in self.counts.items() if state != State.RETIRED)

    @property
    def in_service(self) -> int:
        return self.counts[State.IN_SERVICE]

    @property
    def out(self) -> int:
        """Broken, waiting, being worked on or watched: in no state of work or of a rollout."""
        return sum(self.counts[state] for state in queues.OUT)


def standings(*, now: datetime, pools: Q | None = None) -> list[Standing]:
    """Return the present machines per platform and pool, counted by the database.

    Qualified are those that may take work and whose watch period after a repair is over.
    """
    machines = Machine.objects.filter(pools or Q()).order_by()
    rows = machines.values_list("platform_id", "pool", "state").annotate(n=Count("pk"))
    found: dict[Place, Standing] = {}
    names = dict(Platform.objects.values_list("pk", "name"))
    for platform, pool, state, count in rows:
        own = found.setdefault((platform, pool), Standing(names[platform], pool))
        own.counts[state] += count
    for name, counts in measured(now=now).items():
        for place, own in found.items():
            setattr(own, name, counts.get(place, 0))
    return sorted(found.values(), key=lambda one: (one.platform, one.pool))


def measured(*, now: datetime) -> dict[str, dict[Place, int]]:
    """Return what only the present tells, per place: canaries, cordoned and qualified machines."""
    service = Machine.objects.filter(state=State.IN_SERVICE)
    is_watched = Q(watch_until__gt=now)
    reader = adapters.open_arms()
    canaries: Any = reader.canaries() if reader else ()
    cordons = Cordon.objects.filter(lifted_at=None).values("machine")
    return {
        "canary": _by_place(service.filter(pk__in=canaries)),
        "cordoned": _by_place(service.filter(pk__in=cordons)),
        "qualified": _by_place(service.filter(may_take_work=True).exclude(is_watched)),
    }


def _by_place(machines: QuerySet[Machine]) -> dict[Place, int]:
    rows = machines.order_by().values_list("platform_id", "pool").annotate(n=Count("pk"))
    return {(platform, pool): count for platform, pool, count in rows}


def standings_as_of(at: datetime) -> list[Standing]:
    """Return the machines per platform and pool at a past time, from the recorded changes.

    Who was canary, cordoned or qualified is not told: it cannot be remade.
    """
    day = at.astimezone(UTC).date()
    kept = kept_before(day)
    base = {} if kept is None else kept[1]
    after = None if kept is None else day_over(kept[0])
    found: dict[Place, Counter[str]] = defaultdict(Counter)
    for _, told in by_day(events(after=after, until=at), first=day, last=day, base=base):
        found = defaultdict(Counter, {place: one.counts for place, one in told.items()})
    names = dict(Platform.objects.values_list("pk", "name"))
    rows = [Standing(names[pk], pool, counts) for (pk, pool), counts in found.items() if +counts]
    return sorted(rows, key=lambda one: (one.platform, one.pool))


def history(
    *, since: date, until: date, places: Q | None = None
) -> Iterator[tuple[date, Standing]]:
    """Yield each kept day of each platform and pool, in order of day."""
    rows = CapacityDay.objects.filter(places or Q(), day__gte=since, day__lte=until)
    rows = rows.select_related("platform").defer("entered", "stays")
    for row in rows.order_by("day", "platform__name", "pool"):
        counts = Counter({state: int(n) for state, n in row.counts.items()})
        told = (row.canary, row.cordoned, row.qualified)
        yield row.day, Standing(row.platform.name, row.pool, counts, *told)
