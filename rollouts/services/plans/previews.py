"""What a draft would do: who, when, in which arm, at what cost, and what it can find out.

Page, API and command show this one object under one digest; submitting by the digest does
exactly this. Lists that people read are bounded and say how much they leave out; everybody in
order is kept with the preview, for pages of the API.
"""

import gc
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from heapq import nsmallest
from operator import attrgetter
from typing import Any

from django.db import transaction
from django.db.models import Count, Q

from fleet.lifecycle import State
from fleet.models import Job, Machine
from rollouts import models as rows
from rollouts import planning, selectors
from rollouts.lifecycle import Status
from rollouts.models import Preview, Rollout
from rollouts.planning.schedule import Opening, Turn, WaveTimes, capacity_loss, schedule
from rollouts.planning.windows import Freeze, Window, gate, longest_attempt
from rollouts.planning.windows import Place as WindowPlace
from rollouts.services.evidence.drawn import drawn_from
from rollouts.services.plans.design import Design, design
from rollouts.services.plans.forecast import forecast_plan
from rollouts.services.plans.neighbours import neighbours_of
from rollouts.services.plans.population import MOST_NAMED, Group, Member, Place
from rollouts.services.plans.purity import planned_purity
from rollouts.services.plans.terms import terms_of
from rollouts.services.records import lock

#: Lines of the drain calendar that are shown per wave.
MOST_LINES = 20
#: Owners of jobs, pools, strata and merges that are shown.
MOST_ROWS = 50
#: Previews of one draft that are kept; the newest ones.
MOST_KEPT = 10


def preview(rollout: Rollout, *, now: datetime) -> Preview:
    """Draw a draft over the fleet as it stands, and keep what was seen under its digest.

    Safe to repeat: the same fleet and plan give the same digest. It is kept while nobody submits
    the draft: what a submission is measured against does not change under it.

    Raises
    ------
    StaleRollout
        If the rollout is no draft any more by then.
    """
    with uncollected():
        made = design(rollout, now=now)
        words = outlook(rollout, made, now=now)
        with transaction.atomic():
            lock(rollout, Status.DRAFT)
            return keep(rollout, made, words=words, now=now)


def glance(draft: Rollout, *, now: datetime) -> Preview:
    """Preview a draft that is not written down; nothing is stored.

    A draft written with this name, plan, bundle and seed has the same digest while the fleet and
    its recent faults stand as they do.
    """
    with uncollected():
        made = design(draft, now=now)
        shown = _shown_fields(draft, made, words=outlook(draft, made, now=now), now=now)
        return Preview(rollout=draft, digest=made.digest, **shown)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from going over a large population again and again.

    A hundred thousand rows make millions of small objects and no cycle among them; looking for
    one takes as long as the planning itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def outlook(rollout: Rollout, made: Design, *, now: datetime) -> list[dict[str, Any]]:
    """Return what each judged wave is expected to find out."""
    ids = {member.name: member.pk for member in made.population.members}
    return forecast_plan(
        rollout.plan,
        made.assignments,
        drawn=drawn_from(made.assignments, ids),
        bundle_id=rollout.bundle_id,
        created_at=rollout.created_at,
        now=now,
    )


def keep(
    rollout: Rollout, made: Design, *, words: Sequence[Mapping[str, Any]], now: datetime
) -> Preview:
    """Keep what a design would do, under its digest; of many previews the newest stay."""
    seen, _ = Preview.objects.update_or_create(
        rollout=rollout,
        digest=made.digest,
        defaults=_shown_fields(rollout, made, words=words, now=now),
    )
    old = rollout.previews.order_by("-made_at", "-pk").values_list("pk", flat=True)[MOST_KEPT:]
    Preview.objects.filter(pk__in=list(old)).delete()
    return seen


def _shown_fields(
    rollout: Rollout, made: Design, *, words: Sequence[Mapping[str, Any]], now: datetime
) -> dict[str, Any]:
    calendar = _Calendar(rollout, made, now=now)
    return {
        "made_at": now,
        "drawn_as_of": made.drawn_as_of,
        "summary": _summary(rollout, made, calendar, words=words, now=now),
        "members": _packed(made, calendar),
    }


def members_of(
    seen: Preview, *, wave: int | None = None, start: int = 0, size: int | None = None
) -> list[dict[str, Any]]:
    """Return who is in a preview, in the drawn order, with wave, arm and forecast start.

    Of one wave if it is named; of them those from `start` on, `size` at most.
    """
    kept: dict[str, Any] = json.loads(zlib.decompress(bytes(seen.members)))
    everybody = range(len(kept["machine"]))
    chosen = [at for at in everybody if kept["wave"][at] == wave] if wave else everybody
    end = None if size is None else start + size
    return [_member(kept, at) for at in chosen[start:end]]


def _member(kept: Mapping[str, Any], at: int) -> dict[str, Any]:
    columns = ("machine", "position", "wave", "starts_in_hours", "job")
    return {
        **{name: kept[name][at] for name in columns},
        "stratum": kept["strata"][kept["stratum"][at]],
        "unit": (kept["unit"] or kept["machine"])[at],
        "hold_back": kept["wave"][at] == kept["release"],
        "irreversible": kept["irreversible"][at] if kept["irreversible"] else "",
    }


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
    """Return everybody in the drawn order as compressed columns; what is trivial is left out."""
    rows = made.assignments.rows
    codes = {stratum: code for code, stratum in enumerate(made.assignments.planned)}
    members = calendar.members
    is_stuck = bool(made.population.irreversible)
    kept = {
        "strata": list(codes),
        "release": made.assignments.release_wave,
        "machine": calendar.names,
        "unit": None
        if made.policy.unit == "machine"
        else [place.unit for place in rows for _ in place.machines],
        "stratum": [codes[place.stratum] for place in rows for _ in place.machines],
        "position": [place.position for place in rows for _ in place.machines],
        "wave": calendar.wave_of,
        "starts_in_hours": [
            round(start, 3) if math.isfinite(start) else None for start in calendar.starts
        ],
        "job": calendar.jobs,
        "irreversible": [members[name].irreversible for name in calendar.names]
        if is_stuck
        else None,
    }
    return zlib.compress(json.dumps(kept, separators=(",", ":")).encode(), level=1)


# --- what people read --------------------------------------------------------------------------


def _summary(
    rollout: Rollout,
    made: Design,
    calendar: "_Calendar",
    *,
    words: Sequence[Mapping[str, Any]],
    now: datetime,
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
        "earlier_halts": selectors.earlier_halts(rollout),
        "terms": terms_of(rollout.plan),
        "waves": [_wave(made, calendar, number, rollout, now) for number in calendar.waves],
        "strata": _strata(drawn),
        "merges": [str(merge) for merge in drawn.merges[:MOST_ROWS]],
        "excluded": _groups(people.excluded),
        "irreversible": _groups(people.irreversible),
        "neighbours": neighbours_of(people),
        "conflicts": [{**asdict(one), "kinds": list(one.kinds)} for one in people.conflicts],
        "forecast": [_shown(number, word) for number, word in enumerate(words, start=1)],
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
    controls = sum(after for _, after in drawn.counts(number).values()) if not is_release else 0
    names = [name for place in places for name in place.machines]
    return {
        "number": number,
        "kind": "release" if is_release else "canary",
        "units": len(places),
        "machines": len(names),
        "controls": controls,
        "purity": calendar.purity.get(number),
        "is_empty": not places,
        "allows_smoke": bool(spec.get("allows_smoke", False)),
        "window_hours": spec.get("window_hours"),
        "first": nsmallest(MOST_NAMED, names),
        "starts_at": _iso(now, times.start),
        "installed_at": _iso(now, times.installed),
        "ends_at": _iso(now, times.end),
        "unknown_start": calendar.unknown[number],
    }


def _shown(number: int, word: Mapping[str, Any]) -> dict[str, Any]:
    """Return of the planner's word on a wave what people read."""
    told = ("canaries", "controls", "days_before", "summary", "a_a_check", "guardrails")
    return {"number": number, **{key: word[key] for key in told if key in word}}


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
        self.pools = _sizes("pool")
        self.known_jobs = _known_jobs()
        rows = [(place.planned_wave, name) for place in drawn.rows for name in place.machines]
        self.names = [name for _, name in rows]
        self.wave_of = [wave for wave, _ in rows]
        self.jobs = [self.members[name].place.job for name in self.names]
        ready = {job: self._ready(job, now) for job in set(self.jobs)}
        lanes = _Lanes(plan["caps"], pools=self.pools)
        turns = []
        for wave, name, job in zip(self.wave_of, self.names, self.jobs, strict=True):
            place = self.members[name].place
            turns.append(Turn(name, wave, ready[job], lanes.of(place), place.site, place.pool))
        after = {
            number: plan["burn_in_hours"] + spec["window_hours"]
            for number, spec in enumerate(plan["waves"], start=1)
        }
        self.starts, self.times = schedule(
            turns,
            waves={**after, drawn.release_wave: 0.0},
            hours_each=self.hours_each,
            opening=_Gates(plan, now).opening(),
        )
        unknown = Counter(
            wave for wave, start in zip(self.wave_of, self.starts, strict=True) if math.isinf(start)
        )
        self.unknown = {number: unknown[number] for number in self.waves}
        self.purity = planned_purity(self.jobs, self.wave_of, judged=range(1, drawn.release_wave))

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
        """When machines of a pool are out, as far as that is known, and for how long in all."""
        loss = capacity_loss(starts, hours_each=self.hours_each, horizon=self.horizon())
        size, unavailable = self.pools[pool]
        return {
            "pool": pool,
            "machines": size,
            "unavailable_now": unavailable,
            "most_out": loss.peak,
            "most_out_at": _iso(now, loss.peak_at),
            "share": round((loss.peak + unavailable) / size, 4) if size else None,
            "machine_hours": round(len(starts) * self.hours_each, 2),
            "step_hours": round(loss.step_hours, 3),
            "series": list(loss.series),
        }

    def summary(self, now: datetime) -> dict[str, Any]:
        """The calendar for people: the first machines of each wave, whose jobs, and the cost."""
        known = sum(map(math.isfinite, self.starts))
        return {
            "hours_each": self.hours_each,
            "machine_hours": round(len(self.starts) * self.hours_each, 2),
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
        first = nsmallest(MOST_LINES, own, key=lambda at: (self.starts[at], self.names[at]))
        for index in first:
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


def _sizes(domain: str) -> dict[str, tuple[int, int]]:
    """Return, per pool, rack, …, its machines and how many of them may take no work."""
    counted = (
        Machine.objects.exclude(state=State.RETIRED)
        .order_by(domain)
        .values_list(domain)
        .annotate(size=Count("pk"), working=Count("pk", filter=Q(may_take_work=True)))
    )
    return {value: (size, size - working) for value, size, working in counted}


class _Lanes:
    """The limits that a machine stands under, and how many each lets be in flight at once.

    Machines that are out of service for other reasons use up a limit of their place.
    """

    def __init__(self, caps: Mapping[str, Any], *, pools: Mapping[str, tuple[int, int]]) -> None:
        self.in_flight: int | None = caps.get("max_in_flight")
        self.limits: dict[str, list[tuple[float, bool]]] = {}
        for name, most in caps.items():
            if most is None or not (name.startswith("per_") or name == "max_unavailable_share"):
                continue
            is_share = name.endswith("_share")
            where = name.removeprefix("per_").removesuffix("_share")
            domain = "pool" if name == "max_unavailable_share" else where
            self.limits.setdefault(domain, []).append((most, is_share))
        self.sizes = {
            domain: pools if domain == "pool" else _sizes(domain) for domain in self.limits
        }
        # Two names at least, so that it always returns a tuple.
        self.place_of = attrgetter("platform", "platform", *self.limits)
        self.seen: dict[tuple[str, ...], tuple[tuple[str, int], ...]] = {}
        self.known: dict[tuple[str, str], tuple[str, int]] = {}

    def of(self, place: Place) -> tuple[tuple[str, int], ...]:
        key = self.place_of(place)
        found = self.seen.get(key)
        if found is None:
            lanes = [self._lane(domain, getattr(place, domain)) for domain in self.limits]
            if self.in_flight is not None:
                lanes.append(("", self.in_flight))
            found = self.seen[key] = tuple(lanes)
        return found

    def _lane(self, domain: str, value: str) -> tuple[str, int]:
        found = self.known.get((domain, value))
        if found is None:
            size, unavailable = self.sizes[domain].get(value, (0, 0))
            most = min(
                math.floor(size * planning.exact(limit)) if is_share else int(limit)
                for limit, is_share in self.limits[domain]
            )
            found = self.known[domain, value] = f"{domain}={value}", max(most - unavailable, 0)
        return found


class _Gates:
    """From when on an attempt may start at a place, by the plan's windows and all freezes."""

    def __init__(self, plan: Mapping[str, Any], now: datetime) -> None:
        self.now = now
        self.windows = [Window.of(window) for window in plan.get("windows", ())]
        self.freezes = [Freeze.of(freeze) for freeze in plan.get("freezes", ())]
        standing = rows.Freeze.objects.filter(lifted_at=None, end__gt=now)
        self.freezes += [
            Freeze(one.start, one.end, one.reason, frozenset(one.sites), frozenset(one.pools))
            for one in standing
        ]
        self.need = longest_attempt(plan)
        self.known: dict[tuple[str, str, float], float] = {}

    def opening(self) -> Opening | None:
        """Return what tells the first time at which an attempt may start; None: always."""
        return self._opens if self.windows or self.freezes else None

    def _opens(self, site: str, pool: str, hours: float) -> float:
        key = (site, pool, hours)
        if key not in self.known:
            at = self.now + timedelta(hours=hours)
            found = gate(
                WindowPlace(site=site, pool=pool),
                at=at,
                windows=self.windows,
                freezes=self.freezes,
                need=self.need,
            )
            opens_at = at if found.is_open else found.opens_at
            self.known[key] = (
                math.inf if opens_at is None else (opens_at - self.now).total_seconds() / 3600
            )
        return self.known[key]
