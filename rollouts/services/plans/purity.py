"""How pure each wave's jobs would be, by the scheduler's present jobs: a forecast, not evidence."""

from collections.abc import Iterable, Sequence

import numpy as np
from django.db.models import Count

from fleet.models import Machine
from rollouts.analysis.neighbours import exposure_purity


def planned_purity(
    jobs: Sequence[str], waves: Sequence[int], *, judged: Iterable[int]
) -> dict[int, float | None]:
    """Return, per judged wave, the share of machines in jobs whose machines are all in one arm.

    `jobs` and `waves` are each machine's present job (empty: none) and the wave that is to treat
    it. Of the arm where the share is smaller; None where no job is known, or an arm is empty. A
    job is mixed, too, if a machine of an earlier wave or of outside the plan is in it.
    """
    names, job = np.unique(["", *jobs], return_inverse=True)
    code, wave = job[1:] - 1, np.asarray(waves, dtype=np.int64)
    counts = np.bincount(code[code >= 0], minlength=names.size - 1)
    in_fleet = dict(
        Machine.objects.exclude(job="").order_by().values_list("job").annotate(n=Count("pk"))
    )
    whole = np.array([in_fleet.get(name, 0) for name in names[1:].tolist()], dtype=np.int64)
    has_stranger = whole > counts
    found = {}
    for number in judged:
        is_mixed = has_stranger.copy()
        is_mixed[code[(wave < number) & (code >= 0)]] = True
        here = wave >= number
        found[number] = exposure_purity(
            code[here],
            np.ones(int(here.sum())),
            is_canary=wave[here] == number,
            is_mixed=is_mixed,
        )
    return found
