"""Is there data, and is it balanced: silence, differential silence, arm balance.

Silence is data. A guardrail whose input stopped says `no_data`, which never widens.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import hypergeom

from rollouts.analysis.exposure import is_in_service, latest
from rollouts.analysis.policy import NODE_PROBE
from rollouts.analysis.samples import BoolArray, FloatArray, ObservationRows, Samples

LEAST_HEARD_SHARE = 0.5
DIFFERENTIAL_P = 0.01
SPACING_QUANTILE = 0.99


@dataclass(frozen=True)
class Coverage:
    """How many in-service units of each arm sent their input since the look before."""

    heard_canary: int
    due_canary: int
    heard_control: int
    due_control: int

    @property
    def p_fewer_canaries(self) -> float:
        """P(at most so many canaries among those heard), if silence were blind to the arm.

        Examples
        --------
        >>> round(Coverage(10, 20, 80, 80).p_fewer_canaries, 9)
        1.1e-08
        """
        total = self.due_canary + self.due_control
        heard = self.heard_canary + self.heard_control
        return _p_at_most(self.heard_canary, total=total, marked=self.due_canary, drawn=heard)

    def problem(self, what: str) -> str | None:
        """Why there is no data, or None.

        Examples
        --------
        >>> Coverage(9, 20, 80, 80).problem("throughput")
        'no data: 9 of 20 canary units sent throughput since the look before'
        >>> Coverage(20, 20, 80, 80).problem("throughput") is None
        True
        """
        for heard, due, name in (
            (self.heard_canary, self.due_canary, "canary"),
            (self.heard_control, self.due_control, "control"),
        ):
            if heard < LEAST_HEARD_SHARE * due:
                return f"no data: {heard} of {due} {name} units sent {what} since the look before"
        return self.differential(what)

    def differential(self, what: str) -> str | None:
        """Why silence is not blind to the arm, or None.

        Examples
        --------
        >>> Coverage(60, 64, 256, 256).differential("reports").partition(" (")[0]
        'no data: canaries fell silent more often than controls'
        """
        # Not `>=`: without anybody who owed a report, p is not a number and nothing is wrong.
        if not self.p_fewer_canaries < DIFFERENTIAL_P:
            return None
        return (
            f"no data: canaries fell silent more often than controls "
            f"({self.heard_canary} of {self.due_canary} against {self.heard_control} "
            f"of {self.due_control} sent {what})"
        )


@lru_cache(maxsize=4096)
def _p_at_most(seen: int, *, total: int, marked: int, drawn: int) -> float:
    """Hypergeometric; most looks are like another, and SciPy takes its time."""
    return float(hypergeom.cdf(seen, total, marked, drawn))


def usable(
    rows: ObservationRows, *, needs_throughput: bool, is_probe: bool | None = None
) -> BoolArray:
    """Rows that carry the input: any report, or one with a finite throughput.

    `is_probe` True: of node probes only; False: of all else.
    """
    good = np.ones(rows.machine.size, dtype=np.bool_)
    if needs_throughput:
        good &= np.isfinite(rows.throughput)
    if is_probe is not None and NODE_PROBE in rows.workloads:
        good &= (rows.workload == rows.workloads.index(NODE_PROBE)) == is_probe
    elif is_probe:
        good[:] = False
    return good


def heard_until(
    samples: Samples,
    as_of: FloatArray,
    *,
    needs_throughput: bool,
    is_probe: bool | None = None,
) -> FloatArray:
    """Per unit (rows) and look (columns), the end of the latest usable report; -inf if none."""
    rows = samples.observations
    if rows is None:
        return np.full((samples.units.is_canary.size, as_of.size), -np.inf)
    good = usable(rows, needs_throughput=needs_throughput, is_probe=is_probe)
    return latest(
        samples.machines.unit[rows.machine[good]],
        rows.end_seconds[good],
        size=samples.units.is_canary.size,
        as_of=as_of,
    )


def report_spacing(samples: Samples) -> float:
    """Planned time between two reports of a machine; of a recording, nearly the longest seen."""
    if samples.interval_seconds is not None:
        return samples.interval_seconds
    rows = samples.observations
    if rows is None or rows.machine.size < 2:
        return 0.0
    order = np.lexsort((rows.end_seconds, rows.machine))
    same = np.diff(rows.machine[order]) == 0
    steps = np.diff(rows.end_seconds[order])[same]
    spans = rows.end_seconds - rows.start_seconds
    seen = np.concatenate([steps, spans])
    return float(np.quantile(seen, SPACING_QUANTILE)) if seen.size else 0.0


def coverage(
    samples: Samples,
    *,
    heard: FloatArray,
    heard_before: FloatArray | None,
    since: float,
    until: float,
    spacing: float,
) -> Coverage:
    """Who of the units in service sent something new in (since, until].

    Parameters
    ----------
    heard, heard_before : (units,) arrays
        End of each unit's latest report, as known now and at the look before; a report that
        was new since then counts even if it ended earlier.
    since, until : float
        The looks before and now.
    spacing : float
        Seconds between two reports: where it exceeds the time between looks, it sets how far
        back a sign of life may lie, and how long a unit must have served to owe one.
    """
    start = min(since, until - spacing)
    due = is_in_service(samples, since=start, until=until, at_least=min(spacing, until - start))
    is_new = heard > start
    if heard_before is not None:
        is_new |= heard > heard_before
    canary = samples.units.is_canary
    return Coverage(
        heard_canary=int((due & is_new & canary).sum()),
        due_canary=int((due & canary).sum()),
        heard_control=int((due & is_new & ~canary).sum()),
        due_control=int((due & ~canary).sum()),
    )


def sample_ratio_p(contributes: BoolArray, *, is_canary: BoolArray) -> float:
    """Two-sided p of "contributing to the evidence is blind to the arm" (hypergeometric, exact).

    Parameters
    ----------
    contributes : (units,) bool array
        Units with any exposure at the look.
    is_canary : (units,) bool array

    Returns
    -------
    float
        Twice the smaller tail, at most 1. The engine fixes the arms' sizes, so a mismatch shows in
        who contributes, not in who was drawn. Below .001 the comparison deserves a look before any
        verdict.

    Examples
    --------
    >>> sample_ratio_p(np.ones(10, bool), is_canary=np.arange(10) < 2)
    1.0
    """
    total, canaries, size = int(contributes.sum()), int(is_canary.sum()), is_canary.size
    seen = int((contributes & is_canary).sum())
    lower = float(hypergeom.cdf(seen, size, canaries, total))
    upper = float(hypergeom.sf(seen - 1, size, canaries, total))
    return min(1.0, 2 * min(lower, upper))
