"""What a draft would do: who, when, in which arm, at what cost, and what it can find out.

Page, API and command show this one object under one digest; submitting by the digest does
exactly this. Lists that people read are bounded and say how much they leave out; everybody in
order is kept with the preview, for pages of the API.
"""

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q

from fleet.lifecycle import State
from fleet.models import Job, Machine
from rollouts import planning
from rollouts.models import Preview, Rollout
from rollouts.planning.limits import Caps
from rollouts.planning.schedule import Turn, WaveTimes, capacity_loss, schedule
from rollouts.services.design import Design, design
from rollouts.services.population import MOST_NAMED, Group, Member

#: Lines of the drain calendar that are shown per wave.
MOST_LINES = 20
#: Owners of jobs, pools, strata and merges that are shown.
MOST_ROWS = 50
#: Previews of one draft that are kept; the newest ones.
MOST_KEPT = 10


def preview(rollout: Rollout, *, now: datetime) -> Preview:
    """Draw a draft over the fleet as it stands, and keep what was seen under its digest.

    Safe to repeat: the same fleet and plan give the same digest.
    """
    return keep(rollout, design(rollout, now=now), now=now)


def keep(rollout: Rollout, made: Design, *, now: datetime) -> Preview:
    """Keep what a design would do, under its digest; of many previews the newest stay."""
    calendar = _Calendar(rollout, made, now=now)
    seen, _ = Preview.objects.update_or_create(
        rollout=rollout,
        digest=made.digest,
        defaults={
            "made_at": now,
            "drawn_as_of": made.drawn_as_of,
            "summary": _summary(rollout, made, calendar, now=now),
            "members": _packed(made, calendar),
        },
    )
    old = rollout.previews.order_by("-made_at", "-pk").values_list("pk", flat=True)[MOST_KEPT:]
    Preview.objects.filter(pk__in=list(old)).delete()
    return seen


def members_of(seen: Preview) -> list[dict[str, Any]]:
    """Return everybody in a preview, in the drawn order, with wave, arm and forecast start."""
    columns: dict[str, list[Any]] = json.loads(zlib.decompress(bytes(seen.members)))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def difference(seen: Preview, made: Design) -> tuple[str, list[str]]:
    """Say what became of the fleet since a preview: in one sentence, and by name, bounded."""
    before = {row["machine"]: (row["stratum"], row["wave"]) for row in members_of(seen)}
    after = {
        name: (place.stratum, place.planned_wave)
        for place in made.assignments.rows
        for name in place.machines
    }
    added, left = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    moved = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    why = {
        name: reason for reason, group in made.population.excluded.items() for name in group.first
    }
    said = [
        *(f"added: {name}" for name in added[:MOST_NAMED]),
        *(f"left: {name}{f' ({why[name]})' if name in why else ''}" for name in left[:MOST_NAMED]),
        *(f"other stratum or wave: {name}" for name in moved[:MOST_NAMED]),
    ]
    if not (added or left or moved):
        return "plan changed: its text, its bundle or the order inside its strata", []
    sentence = f"fleet changed: {len(added)} added, {len(left)} left"
    return (f"{sentence}, {len(moved)} in another stratum or wave" if moved else sentence), said


def _packed(made: Design, calendar: "_Calendar") -> bytes:
    rows = made.assignments.rows
    columns: dict[str, list[Any]] = {
        "machine": [name for place in rows for name in place.machines],
        "unit": [place.unit for place in rows for _ in place.machines],
        "stratum": [place.stratum for place in rows for _ in place.machines],
        "position": [place.position for place in rows for _ in place.machines],
        "wave": [place.planned_wave for place in rows for _ in place.machines],
        "hold_back": [place.is_hold_back for place in rows for _ in place.machines],
        "starts_in_hours": [
            round(start, 3) if math.isfinite(start) else None for start in calendar.starts
        ],
        "job": calendar.jobs,
        "irreversible": [calendar.members[name].irreversible for name in calendar.names],
    }
    return zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), level=1)


# --- what people read --------------------------------------------------------------------------


def _summary(
    rollout: Rollout, made: Design, calendar: "_Calendar", *, now: datetime
) -> dict[str, Any]:
    people, drawn = made.population, made.assignments
    return {
        "rollout": rollout.name,
        "bundle": str(rollout.bundle),
        "selector": rollout.selector,
        "mode": rollout.plan["mode"],
        "unit": made.policy.unit,
        "machines": len(people.members),
        "units": len(drawn.rows),
        "refusals": list(made.reasons),
        "waves": [_wave(made, calendar, number, rollout, now) for number in calendar.waves],
        "strata": _strata(drawn),
        "merges": [str(merge) for merge in drawn.merges[:MOST_ROWS]],
        "excluded": _groups(people.excluded),
        "irreversible": _groups(people.irreversible),
        "conflicts": [asdict(conflict) for conflict in people.conflicts],
        "capacity": calendar.capacity(now),
        "calendar": calendar.summary(now),
    }


def _groups(groups: Mapping[str, Group]) -> list[dict[str, Any]]:
    by_size = sorted(groups.items(), key=lambda item: (-item[1].count, item[0]))
    return [{"reason": reason, **asdict(group)} for reason, group in by_size]


def _strata(drawn: planning.Assignments) -> dict[str, Any]:
    named = sorted(drawn.planned.items(), key=lambda item: (-sum(item[1]), item[0]))
    return {
        "count": len(named),
        "rows": [
            {"stratum": stratum, "units": sum(planned), "waves": list(planned)}
            for stratum, planned in named[:MOST_ROWS]
        ],
    }


def _wave(
    made: Design, calendar: "_Calendar", number: int, rollout: Rollout, now: datetime
) -> dict[str, Any]:
    """One wave: how many, who first, when, and what stands against them."""
    drawn = made.assignments
    is_release = number == drawn.release_wave
    places = [place for place in drawn.rows if place.planned_wave == number]
    spec = {} if is_release else rollout.plan["waves"][number - 1]
    times = calendar.times[number]
    controls = 0 if is_release else sum(row.planned_wave > number for row in drawn.rows)
    names = [name for place in places for name in place.machines]
    return {
        "number": number,
        "kind": "release" if is_release else "canary",
        "units": len(places),
        "machines": len(names),
        "controls": controls,
        "is_empty": not places,
        "allows_smoke": bool(spec.get("allows_smoke", False)),
        "window_hours": spec.get("window_hours"),
        "first": sorted(names)[:MOST_NAMED],
        "starts_at": _iso(now, times.start),
        "installed_at": _iso(now, times.installed),
        "ends_at": _iso(now, times.end),
        "unknown_start": calendar.unknown[number],
    }


def _iso(now: datetime, hours: float) -> str | None:
    return (now + timedelta(hours=hours)).isoformat() if math.isfinite(hours) else None


# --- when, and at what cost --------------------------------------------------------------------


class _Calendar:
    """The drain calendar: which machine, when, whose job, and what it takes from the pools.

    Everything is taken from the scheduler's present jobs: a machine is free when its job is
    expected to end, at once where it has none, and nobody knows when where its job has no end.
    """

    def __init__(self, rollout: Rollout, made: Design, *, now: datetime) -> None:
        plan, drawn = rollout.plan, made.assignments
        self.members: dict[str, Member] = {m.name: m for m in made.population.members}
        self.waves = range(1, drawn.release_wave + 1)
        self.hours_each = _hours_each(plan)
        self.pools = _pools({member.place.pool for member in made.population.members})
        self.known_jobs = _known_jobs()
        rows = [(place.planned_wave, name) for place in drawn.rows for name in place.machines]
        self.names = [name for _, name in rows]
        self.wave_of = [wave for wave, _ in rows]
        self.jobs = [self.members[name].place.job for name in self.names]
        ready = {job: self._ready(job, now) for job in set(self.jobs)}
        lanes = _Lanes(Caps.of(plan["caps"]), self.pools)
        turns = [
            Turn(name, wave, ready[job], lanes.of(self.members[name]))
            for wave, name, job in zip(self.wave_of, self.names, self.jobs, strict=True)
        ]
        after = {
            number: plan["burn_in_hours"] + spec["window_hours"]
            for number, spec in enumerate(plan["waves"], start=1)
        }
        self.starts, self.times = schedule(
            turns, waves={**after, drawn.release_wave: 0.0}, hours_each=self.hours_each
        )
        unknown = Counter(
            wave for wave, start in zip(self.wave_of, self.starts, strict=True) if math.isinf(start)
        )
        self.unknown = {number: unknown[number] for number in self.waves}

    def _ready(self, job: str, now: datetime) -> float:
        """Return in how many hours a job lets its machines go; infinite where nobody knows."""
        if not job:
            return 0.0
        _, end = self.known_jobs.get(job, ("", None))
        return math.inf if end is None else max((end - now).total_seconds() / 3600, 0.0)

    def horizon(self) -> float:
        times: Iterable[WaveTimes] = self.times.values()
        return max(one.end for one in times)

    def capacity(self, now: datetime) -> list[dict[str, Any]]:
        """What each pool loses over time; the pools that lose most first."""
        by_pool: dict[str, list[float]] = {}
        for name, start in zip(self.names, self.starts, strict=True):
            by_pool.setdefault(self.members[name].place.pool, []).append(start)
        rows = [self._pool(pool, starts, now) for pool, starts in by_pool.items()]
        return sorted(rows, key=lambda row: (-row["machine_hours"], row["pool"]))[:MOST_ROWS]

    def _pool(self, pool: str, starts: Sequence[float], now: datetime) -> dict[str, Any]:
        loss = capacity_loss(starts, hours_each=self.hours_each, horizon=self.horizon())
        size, unavailable = self.pools[pool]
        return {
            "pool": pool,
            "machines": size,
            "unavailable_now": unavailable,
            "most_out": loss.peak,
            "most_out_at": _iso(now, loss.peak_at),
            "share": round((loss.peak + unavailable) / size, 4) if size else None,
            "machine_hours": round(loss.machine_hours, 2),
            "step_hours": round(loss.step_hours, 3),
            "series": list(loss.series),
        }

    def summary(self, now: datetime) -> dict[str, Any]:
        """The calendar for people: the first machines of each wave, whose jobs, and the cost."""
        known = sum(map(math.isfinite, self.starts))
        return {
            "hours_each": self.hours_each,
            "machine_hours": round(known * self.hours_each, 2),
            "unknown_start": len(self.starts) - known,
            "owners": self._owners(),
            "waves": [
                {"number": number, "lines": list(self._lines(number, now))} for number in self.waves
            ],
        }

    def _owners(self) -> list[dict[str, Any]]:
        machines = Counter(self._owner(job) for job in self.jobs if job)
        jobs = Counter(self._owner(job) for job in set(self.jobs) if job)
        return [
            {
                "owner": owner,
                "jobs": jobs[owner],
                "machines": count,
                "machine_hours": round(count * self.hours_each, 2),
            }
            for owner, count in sorted(machines.items(), key=lambda item: (-item[1], item[0]))
        ][:MOST_ROWS]

    def _owner(self, job: str) -> str:
        known = self.known_jobs.get(job)
        return known[0] if known else ""

    def _lines(self, number: int, now: datetime) -> Iterator[dict[str, Any]]:
        own = [index for index, wave in enumerate(self.wave_of) if wave == number]
        for index in sorted(own, key=lambda index: (self.starts[index], self.names[index]))[
            :MOST_LINES
        ]:
            job = self.jobs[index]
            known = self.known_jobs.get(job)
            yield {
                "machine": self.names[index],
                "starts_at": _iso(now, self.starts[index]),
                "job": job,
                "owner": known[0] if known else "",
                "job_ends_at": known[1].isoformat() if known and known[1] else None,
            }


def _hours_each(plan: Mapping[str, Any]) -> float:
    """Return the longest that one install may take by the plan: its time-out and the return's."""
    return float(plan["install_timeout_minutes"] + plan["return_timeout_minutes"]) / 60


def _known_jobs() -> dict[str, tuple[str, datetime | None]]:
    """Return owner and end of every job that machines work on: the expected one, or the seen."""
    known = Job.objects.filter(name__in=Machine.objects.exclude(job="").values("job"))
    rows = known.values_list("name", "owner", "expected_end", "ended_at")
    return {name: (owner, ended or expected) for name, owner, expected, ended in rows.iterator()}


def _pools(names: set[str]) -> dict[str, tuple[int, int]]:
    """Return the size of each pool, and how many of its machines may take no work."""
    rows = (
        Machine.objects.exclude(state=State.RETIRED)
        .order_by("pool")
        .values_list("pool")
        .annotate(size=Count("pk"), working=Count("pk", filter=Q(may_take_work=True)))
    )
    return {pool: (size, size - working) for pool, size, working in rows if pool in names}


class _Lanes:
    """The limits that a machine stands under, and how many each lets be in flight at once."""

    def __init__(self, caps: Caps, pools: Mapping[str, tuple[int, int]]) -> None:
        self.caps, self.pools = caps, pools
        self.seen: dict[Any, tuple[tuple[str, int], ...]] = {}

    def of(self, member: Member) -> tuple[tuple[str, int], ...]:
        place = member.place
        found = self.seen.get(place)
        if found is None:
            found = self.seen[place] = tuple(self._lanes(place))
        return found

    def _lanes(self, place: Any) -> Iterator[tuple[str, int]]:
        if self.caps.max_in_flight is not None:
            yield "", self.caps.max_in_flight
        for domain, most in self.caps.per_domain.items():
            yield f"{domain}={getattr(place, domain)}", most
        share = self.caps.max_unavailable_share
        if share is not None:
            size, unavailable = self.pools[place.pool]
            allowed = math.floor(size * planning.exact(share)) - unavailable
            yield f"share of {place.pool}", max(allowed, 0)
