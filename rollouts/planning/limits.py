"""The blast radius: who may start now, and what keeps the others."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollouts.planning.waves import exact


@dataclass(frozen=True)
class Caps:
    """Blast-radius limits; the strictest wins, None is no limit.

    `per_domain` maps a field of the machine (rack, chassis, pool, ...) to the most that may be
    in flight in one of its values.
    """

    max_in_flight: int | None = None
    max_unavailable_share: float | None = None
    per_domain: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Caps":
        """Read the caps of a plan document."""
        return cls(
            max_in_flight=document.get("max_in_flight"),
            max_unavailable_share=document.get("max_unavailable_share"),
            per_domain={
                name.removeprefix("per_"): limit
                for name, limit in document.items()
                if name.startswith("per_") and limit is not None
            },
        )


@dataclass(frozen=True)
class Candidate:
    """A machine that wants to start, or is in flight, and the domains that it lies in.

    A machine whose domain is unknown shares one domain with all others of which it is unknown.
    """

    name: str
    domains: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pool:
    """Machines of a pool, and how many of them are out of service, in flight ones included."""

    size: int
    unavailable: int


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
    pools: Mapping[str, Pool] | None = None,
    unhealthy: Mapping[str, str] | None = None,
) -> Startable:
    """Pick who may start now, in the queue's order, within every limit.

    Parameters
    ----------
    queue : sequence of Candidate
        Who waits, in the order of the assignment.
    in_flight : collection of Candidate
        Whose attempt runs, of any rollout.
    caps : Caps
    pools : mapping of pool to Pool
        Needed where a share of a pool is the limit. The share is rounded down: a limit that
        allows nobody blocks, and says so, rather than quietly taking one.
    unhealthy : mapping of machine to reason
        Who may not start at present, whatever the limits say.

    Examples
    --------
    >>> queue = [Candidate("n1", {"pool": "a"})]
    >>> caps = Caps(max_unavailable_share=0.1)
    >>> startable(queue, in_flight=[], caps=caps, pools={"a": Pool(5, 0)}).blocked
    ('blocked: limit allows 0 of 5 in pool a, raise the limit or set a count',)
    """
    ledger = _Ledger(caps, in_flight=in_flight, pools=pools or {})
    start: list[str] = []
    waiting: dict[str, str] = {}
    for candidate in queue:
        reason = (unhealthy or {}).get(candidate.name) or ledger.objection(candidate)
        if reason:
            waiting[candidate.name] = reason
        else:
            ledger.add(candidate)
            start.append(candidate.name)
    blocked = sorted({reason for reason in waiting.values() if reason.startswith("blocked: ")})
    return Startable(start=tuple(start), waiting=waiting, blocked=tuple(blocked))


class _Ledger:
    """Counts who is in flight where, and says which limit one more would break."""

    def __init__(
        self, caps: Caps, *, in_flight: Collection[Candidate], pools: Mapping[str, Pool]
    ) -> None:
        self.caps = caps
        self.total = len(in_flight)
        self.busy = Counter(
            (name, candidate.domains.get(name, ""))
            for candidate in in_flight
            for name in caps.per_domain
        )
        self.pools = pools
        self.unavailable = {name: pool.unavailable for name, pool in pools.items()}

    def objection(self, candidate: Candidate) -> str:
        limit = self.caps.max_in_flight
        if limit is not None and self.total >= limit:
            return f"{self.total} of at most {limit} in flight"
        for name, most in sorted(self.caps.per_domain.items()):
            value = candidate.domains.get(name, "")
            busy = self.busy[name, value]
            if busy >= most:
                return f"{busy} of at most {most} in flight in {_place(name, value)}"
        return self._share_objection(candidate)

    def _share_objection(self, candidate: Candidate) -> str:
        share = self.caps.max_unavailable_share
        if share is None:
            return ""
        name = candidate.domains.get("pool", "")
        if name not in self.pools:
            return f"the size of {_place('pool', name)} is not known"
        pool = self.pools[name]
        limit = math.floor(pool.size * exact(share))
        if limit == 0:
            return (
                f"blocked: limit allows 0 of {pool.size} in {_place('pool', name)}, "
                "raise the limit or set a count"
            )
        if self.unavailable[name] >= limit:
            return (
                f"{self.unavailable[name]} of at most {limit} out of service in "
                f"{_place('pool', name)} of {pool.size}"
            )
        return ""

    def add(self, candidate: Candidate) -> None:
        self.total += 1
        self.busy.update((name, candidate.domains.get(name, "")) for name in self.caps.per_domain)
        pool = candidate.domains.get("pool", "")
        if pool in self.unavailable:
            self.unavailable[pool] += 1


def _place(name: str, value: str) -> str:
    return f"{name.replace('_', ' ')} {value}" if value else f"no known {name.replace('_', ' ')}"
