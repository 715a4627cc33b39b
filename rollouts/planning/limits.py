"""The blast radius: who may start now, and what keeps the others."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rollouts.planning.waves import exact

#: What a place is: a field of the machine and its value.
Where = tuple[str, str]


@dataclass(frozen=True)
class Caps:
    """Blast-radius limits; the strictest wins, None is no limit.

    `per_domain` maps a field of the machine (rack, chassis, pool, ...) to the most machines of
    one of its values that may be out of service at once, `share_per_domain` to the largest share
    of them. `largest_job` is a number of machines that have to stay able to work in every pool;
    `keeps_present_job` takes the size of the largest job of each pool for it.
    """

    max_in_flight: int | None = None
    per_domain: Mapping[str, int] = field(default_factory=dict)
    share_per_domain: Mapping[str, float] = field(default_factory=dict)
    largest_job: int = 0
    keeps_present_job: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Caps":
        """Read the caps of a plan document."""
        given = {name: limit for name, limit in document.items() if limit is not None}
        per = {name[4:]: limit for name, limit in given.items() if name.startswith("per_")}
        shares = {name[:-6]: limit for name, limit in per.items() if name.endswith("_share")}
        if "max_unavailable_share" in given:
            shares["pool"] = given["max_unavailable_share"]
        job = given.get("largest_job", 0)
        return cls(
            max_in_flight=given.get("max_in_flight"),
            per_domain={n: limit for n, limit in per.items() if not n.endswith("_share")},
            share_per_domain=shares,
            largest_job=0 if job == "present" else job,
            keeps_present_job=job == "present",
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a machine of which some value is limited."""
        pool = ("pool",) if self.largest_job or self.keeps_present_job else ()
        return tuple(sorted({*self.per_domain, *self.share_per_domain, *pool}))


@dataclass(frozen=True)
class Candidate:
    """A machine that wants to start, or is in flight, and the domains that it lies in.

    Candidates of one `group` start together or not at all. A machine whose domain is unknown
    shares one domain with all others of which it is unknown.
    """

    name: str
    domains: Mapping[str, str] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True)
class Domain:
    """Machines of a rack, a pool, ...: how many, and how many of them are out of service.

    Those in flight are among the unavailable. `largest_job` is the size of the largest job that
    works there now.
    """

    size: int
    unavailable: int
    largest_job: int = 0


@dataclass(frozen=True)
class Pace:
    """How many of a rollout's own attempts may be in flight, for which reason in words."""

    limit: int
    in_flight: int
    because: str


@dataclass(frozen=True)
class Startable:
    """Who may start now; why each of the others waits; and what no waiting will mend."""

    start: tuple[str, ...]
    waiting: Mapping[str, str]
    blocked: tuple[str, ...]


def startable(
    queue: Sequence[Candidate],
    *,
    in_flight: Collection[Candidate],
    caps: Caps,
    domains: Mapping[Where, Domain] | None = None,
    unhealthy: Mapping[str, str] | None = None,
    pace: Pace | None = None,
) -> Startable:
    """Pick who may start now, in the queue's order, within every limit.

    Parameters
    ----------
    queue : sequence of Candidate
        Who waits, in the order of the assignment; those of a group one after the other.
    in_flight : collection of Candidate
        Whose attempt runs, of any rollout.
    caps : Caps
    domains : mapping of (field, value) to Domain
        Needed where a share is the limit or a job has to stay placeable. Machines that are out of
        service for other reasons consume a limit like those in flight. A share is rounded down: a
        limit that allows nobody blocks, and says so, rather than quietly taking one.
    unhealthy : mapping of machine to reason
        Who may not start at present, whatever the limits say.
    pace : Pace, optional
        How many the rollout itself may have in flight.

    Examples
    --------
    >>> queue = [Candidate("n1", {"pool": "a"})]
    >>> caps = Caps(share_per_domain={"pool": 0.1})
    >>> startable(queue, in_flight=[], caps=caps, domains={("pool", "a"): Domain(5, 0)}).blocked
    ('blocked: limit allows 0 of 5 in pool a, raise the limit or set a count',)
    """
    ledger = _Ledger(caps, in_flight=in_flight, domains=domains or {}, pace=pace)
    start: list[str] = []
    waiting: dict[str, str] = {}
    for group in _groups(queue):
        sick = next((why for c in group if (why := (unhealthy or {}).get(c.name))), "")
        if reason := sick or ledger.objection(group):
            waiting.update(dict.fromkeys((c.name for c in group), reason))
        else:
            ledger.add(group)
            start += [c.name for c in group]
    blocked = sorted({reason for reason in waiting.values() if reason.startswith("blocked: ")})
    return Startable(start=tuple(start), waiting=waiting, blocked=tuple(blocked))


def full_domains(caps: Caps, domains: Mapping[Where, Domain]) -> Iterator[Where]:
    """Yield the domains in which not one machine more may go out of service.

    Examples
    --------
    >>> racks = {("rack", "r1"): Domain(8, 1), ("rack", "r2"): Domain(8, 0)}
    >>> list(full_domains(Caps(per_domain={"rack": 1}), racks))
    [('rack', 'r1')]
    """
    ledger = _Ledger(caps, in_flight=(), domains=domains)
    for where in domains:
        if ledger.objection([Candidate("", dict([where]))], only=where[0]):
            yield where


def _groups(queue: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield the candidates that start together; those without a group alone."""
    for group, members in groupby(queue, key=lambda candidate: candidate.group):
        if group:
            yield list(members)
        else:
            yield from ([candidate] for candidate in members)


class _Ledger:
    """Counts who is out of service where, and says which limit more of them would break."""

    def __init__(
        self,
        caps: Caps,
        *,
        in_flight: Collection[Candidate],
        domains: Mapping[Where, Domain],
        pace: Pace | None = None,
    ) -> None:
        self.caps = caps
        self.total = len(in_flight)
        self.pace = pace
        self.started = 0
        self.domains = domains
        flying = Counter(where for candidate in in_flight for where in self._places([candidate]))
        # Whoever is in flight is out of service, too: the larger count holds both.
        self.out = Counter(
            {
                where: max(flying[where], domains[where].unavailable if where in domains else 0)
                for where in {*flying, *domains}
            }
        )

    def _places(self, group: Sequence[Candidate]) -> list[Where]:
        fields = self.caps.fields
        return [(name, c.domains.get(name, "")) for c in group for name in fields]

    def objection(self, group: Sequence[Candidate], *, only: str = "") -> str:
        """Say why these cannot all start now, or nothing; `only` looks at one field."""
        found = "" if only else self._total_objection(len(group)) or self._pace_objection(group)
        wanted = Counter(self._places(group))
        checks = (
            self._domain_objection(where, more)
            for where, more in sorted(wanted.items())
            if only in ("", where[0])
        )
        return found or next((why for why in checks if why), "")

    def _total_objection(self, more: int) -> str:
        limit = self.caps.max_in_flight
        if limit is None or self.total + more <= limit:
            return ""
        if more > limit:
            return f"blocked: {_together(more)}, and at most {limit} may be in flight"
        return f"{self.total} of at most {limit} in flight"

    def _pace_objection(self, group: Sequence[Candidate]) -> str:
        pace = self.pace
        if pace is None:
            return ""
        flying = pace.in_flight + self.started
        # An activation domain larger than the pace starts alone: it cannot be divided.
        if flying + len(group) <= pace.limit or (flying == 0 and pace.limit > 0):
            return ""
        return f"{flying} of at most {pace.limit} in flight: {pace.because}"

    def _domain_objection(self, where: Where, more: int) -> str:
        name = where[0]
        count, share = self.caps.per_domain.get(name), self.caps.share_per_domain.get(name)
        if count is not None and (why := self._count_objection(where, more, limit=count)):
            return why
        if share is not None and (why := self._share_objection(where, more, share=share)):
            return why
        return self._job_objection(where, more) if name == "pool" else ""

    def _count_objection(self, where: Where, more: int, *, limit: int) -> str:
        if more > limit:
            return f"blocked: {_together(more)}, and limit allows {limit} in {_place(where)}"
        if self.out[where] + more > limit:
            return f"{self.out[where]} of at most {limit} out of service in {_place(where)}"
        return ""

    def _share_objection(self, where: Where, more: int, *, share: float) -> str:
        if where not in self.domains:
            return f"the size of {_place(where)} is not known"
        size = self.domains[where].size
        limit = math.floor(size * exact(share))
        if more > limit:
            together = f" and {_together(more)}" if limit else ""
            return (
                f"blocked: limit allows {limit} of {size} in {_place(where)}{together}, "
                "raise the limit or set a count"
            )
        if self.out[where] + more > limit:
            return (
                f"{self.out[where]} of at most {limit} out of service in {_place(where)} of {size}"
            )
        return ""

    def _job_objection(self, where: Where, more: int) -> str:
        keeps_present = self.caps.keeps_present_job
        if not self.caps.largest_job and not keeps_present:
            return ""
        if where not in self.domains:
            return f"the size of {_place(where)} is not known"
        domain = self.domains[where]
        job = domain.largest_job if keeps_present else self.caps.largest_job
        if job and domain.size - more < job:
            return (
                f"blocked: {_place(where)} of {domain.size} could not place its largest job of "
                f"{job} with {more} out of service"
            )
        able = domain.size - self.out[where]
        if job and able - more < job:
            return f"{able} machines of {_place(where)} can work, and a job of {job} has to fit"
        return ""

    def add(self, group: Sequence[Candidate]) -> None:
        self.total += len(group)
        self.started += len(group)
        self.out.update(self._places(group))


def _together(number: int) -> str:
    return f"{number} machines start together" if number > 1 else "one machine starts"


def _place(where: Where) -> str:
    name, value = where
    words = name.replace("_", " ")
    return f"{words} {value}" if value else f"no known {words}"
