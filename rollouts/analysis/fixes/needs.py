"""How much more machine-time it takes before an answer can be given."""

import math

from scipy.stats import t as student

from rollouts.analysis.fixes.ratios import HALVING, Comparison
from rollouts.analysis.power import schoenfeld_events

POWER = 0.8
"""Of finding a halving, when more machine-days are asked for."""
MOST_MORE = 100.0
"""Nobody is asked for more than so many times the machine-days that there were."""


def needed_days(concurrent: Comparison, alike: Comparison, *, level: float) -> float | None:
    """Machine-days beyond those had: of the comparison that wants more.

    Enough to find a halving (`POWER`), and at least enough for the ratio seen to be told from 1
    or from a halving, whichever is farther.
    """
    whole = _more(concurrent, level=level)
    if whole is None or alike.estimate is None:
        return whole
    # Machines that stand as controls at several steps have their days counted there each time.
    days = concurrent.fixed.days + concurrent.unfixed.days
    matched = _more(alike, level=level)
    share = days / (alike.fixed.days + alike.unfixed.days)
    return None if matched is None else max(whole, matched * share)


def _more(one: Comparison, *, level: float) -> float | None:
    had = one.fixed.days + one.unfixed.days
    amount = one.fixed.amount + one.unfixed.amount
    rate = one.unfixed.per_day or (amount / had if had > 0 else 0.0)
    if rate <= 0:
        return None
    share = one.fixed.days / had if one.fixed.days > 0 and one.unfixed.days > 0 else 0.5
    events = schoenfeld_events(
        HALVING, canary_fraction=share, alpha=(1 - level) / 2, beta=1 - POWER
    )
    whole = events * one.inflation / (rate * (share * HALVING + 1 - share))
    more = max(whole - had, _to_tell(one, had=had, level=level), 0.0)
    return more if had <= 0 or more <= MOST_MORE * had else None


def _to_tell(one: Comparison, *, had: float, level: float) -> float:
    if not one.estimate or one.spread is None:
        return 0.0
    seen = math.log(one.estimate)
    gap = max(abs(seen), abs(seen - math.log(HALVING)))
    if one.low is not None and one.low > HALVING:
        gap = abs(seen)  # a halving is excluded; what is left is whether there is any reduction
    if gap <= 0:
        return 0.0
    bound = float(student.isf((1 - level) / 2, 1_000))
    return had * ((bound * one.spread / gap) ** 2 - 1)
