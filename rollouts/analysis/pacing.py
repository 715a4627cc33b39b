"""How many installs may be in flight: no more than the failures that may still happen."""

import math
from collections.abc import Sequence

from rollouts.analysis.proportions import (
    FIRST_INSTALLS,
    Bound,
    clopper_pearson,
    hard_stop,
    install_log_e,
)

#: One-sided level of the bound of the observed failure share.
LEVEL = 0.95


def failure_budget(
    is_failed: Sequence[bool], *, alpha: float, tolerated: float | None
) -> int | None:
    """Count the failures that the next installs could end in before installs halt the wave.

    Parameters
    ----------
    is_failed : sequence of bool
        The wave's finished installs in order of their end; a time-out is a failure.
    alpha : float
        The install guardrail's halt level in the wave; 0 for none.
    tolerated : float or None
        Its tolerated failure probability; None where no guardrail judges installs.

    Returns
    -------
    int or None
        The most failures in a row after which neither the stop on early failures nor the
        evidence against `tolerated` has halted; None where no such number ever would.

    Notes
    -----
    Bricks are not counted in: whether a machine is one, only a person's triage says, and new
    starts wait for that word anyhow.

    Examples
    --------
    >>> failure_budget([], alpha=0.001, tolerated=0.02)
    2
    >>> failure_budget([True, False, True], alpha=0.001, tolerated=0.02)
    0
    >>> failure_budget([False] * 40, alpha=0.001, tolerated=0.02)
    7
    """
    most = 1
    while not _halts(is_failed, most, alpha=alpha, tolerated=tolerated):
        if (alpha <= 0 or tolerated is None) and most > FIRST_INSTALLS:
            return None
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        if _halts(is_failed, middle, alpha=alpha, tolerated=tolerated):
            most = middle
        else:
            least = middle
    return most - 1


def _halts(is_failed: Sequence[bool], more: int, *, alpha: float, tolerated: float | None) -> bool:
    first = [*is_failed[:FIRST_INSTALLS], *[True] * more]
    if hard_stop(first, bricks=0, max_bricks=0) is not None:
        return True
    if alpha <= 0 or tolerated is None:
        return False
    failures = sum(map(bool, is_failed)) + more
    return install_log_e(failures, len(is_failed) + more, p0=tolerated) >= -math.log(alpha)


def most_in_flight(budget: int, *, failures: int, attempts: int, is_smoke: bool) -> int:
    """Return how many installs may be in flight with so many failures left.

    In a smoke wave one more than the budget, so that all of them failing is just enough to halt.
    Later as many as, failing at the upper bound of the observed share, would use the budget up;
    at least one, or nothing would ever show whether it goes on failing.

    Examples
    --------
    >>> most_in_flight(2, failures=0, attempts=0, is_smoke=True)
    3
    >>> most_in_flight(2, failures=0, attempts=20, is_smoke=False)
    14
    """
    if is_smoke:
        return budget + 1
    upper = clopper_pearson(failures, attempts, level=LEVEL, side=Bound.UPPER)
    return max(1, math.floor(budget / upper))
