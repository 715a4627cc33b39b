"""Why a plan cannot be carried out: everything at once."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any

from rollouts.planning.batches import batch_count, deal_counts
from rollouts.planning.order import Assignments
from rollouts.planning.waves import WaveSpec, exact
from rollouts.planning.windows import longest_attempt


def log_assignments(cells: Iterable[tuple[int, int]]) -> float:
    """Natural logarithm of the number of assignments, the product of C(n, c) over the cells.

    Examples
    --------
    >>> round(math.exp(log_assignments([(4, 12)])))
    1820
    """
    return math.fsum(
        math.lgamma(c + k + 1) - math.lgamma(c + 1) - math.lgamma(k + 1) for c, k in cells
    )


def can_reach(cells: Collection[tuple[int, int]], *, alpha: float | Fraction) -> bool:
    """Tell whether an exact test over these cells can reach `alpha`: p is at least 1/∏C(n, c).

    Examples
    --------
    >>> can_reach([(4, 12)], alpha=0.001), can_reach([(2, 6)], alpha=0.01)
    (True, False)
    """
    if log_assignments(cells) > 100:
        return alpha > 1e-40
    return math.prod(math.comb(c + k, c) for c, k in cells) * Fraction(alpha) >= 1


def cells_of(
    assignments: Assignments, *, wave: int, batch_size: int | None
) -> list[tuple[int, int]]:
    """Planned canaries and controls of a wave in every cell of stratum and block."""
    counts = [assignments.counts(wave)[stratum] for stratum in sorted(assignments.planned)]
    batches = batch_count(sum(c for c, _ in counts), batch_size=batch_size)
    return [cell for dealt in deal_counts(counts, batches=batches) for cell in dealt.values()]


def refuse(
    plan: Mapping[str, Any],
    *,
    assignments: Assignments,
    alphas: Mapping[str, float | Fraction],
    metrics: Collection[str],
    most_enumerated: int,
) -> list[str]:
    """Everything that is wrong with a plan for this population, at once; empty if nothing is.

    Parameters
    ----------
    plan : mapping
        The plan document, every default filled in.
    assignments : Assignments
        The drawn order, with the wave sizes.
    alphas : mapping of guardrail name to its whole alpha in one wave
        Of the guardrails that are judged by re-assignment.
    metrics : collection of str
        The known metrics.
    most_enumerated : int
        Assignments up to which a test goes through all of them instead of drawing `resamples`.
    """
    specs = [WaveSpec.of(wave) for wave in plan["waves"]]
    return [
        *_population_reasons(assignments),
        *_wave_reasons(specs),
        *_control_reasons(assignments),
        *_time_reasons(plan, specs),
        *_block_reasons(plan, specs, sizes=assignments.sizes),
        *_window_reasons(plan),
        *_cap_reasons(plan.get("caps", {})),
        *_metric_reasons(plan["guardrails"], metrics=metrics),
        *_design_reasons(assignments, alphas=alphas, batch_size=plan.get("batch_size")),
        *_resample_reasons(plan, assignments, alphas=alphas, most_enumerated=most_enumerated),
    ]


def split_domains(places: Iterable[tuple[str, str]], *, domain: str, unit: str) -> list[str]:
    """Say which activation domains the plan would start in parts; empty if none.

    `places` pairs the domain's value of each machine with its placement unit. Machines that
    activate as one have to be of one unit, since the units of a wave are drawn apart.

    Examples
    --------
    >>> split_domains([("r1", "n1"), ("r1", "n2"), ("r2", "n3")], domain="rack", unit="machine")
    ['the bundle activates a whole rack, and unit machine divides rack r1; draw by rack instead']
    """
    units: dict[str, set[str]] = {}
    for value, own in places:
        units.setdefault(value, set()).add(own)
    split = sorted(value for value, own in units.items() if len(own) > 1)
    if not split:
        return []
    words = domain.replace("_", " ")
    named = [f"{words} {value}" if value else f"machines of no known {words}" for value in split]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    divided = f"{', '.join(named[:3])}{more}"
    wholes = f"the bundle activates a whole {words}"
    return [f"{wholes}, and unit {unit} divides {divided}; draw by {domain} instead"]


def _population_reasons(assignments: Assignments) -> list[str]:
    if not assignments.rows:
        return ["the selector matches no eligible machine"]
    if not sum(assignments.sizes):
        return [f"every wave is empty: all {len(assignments.rows)} units are held back"]
    return []


def _wave_reasons(specs: Sequence[WaveSpec]) -> list[str]:
    reasons = []
    shares = sum((exact(spec.share) for spec in specs if spec.share is not None), Fraction(0))
    if shares > 1:
        reasons.append(
            f"the waves' shares add to {float(shares * 100):g} %; at most 100 % is accepted"
        )
    if specs and specs[0].growth is not None:
        reasons.append("wave 1 has no wave before it to grow from; give it a count or a share")
    rest = [number for number, spec in enumerate(specs, 1) if spec.is_rest]
    if rest and rest[0] < len(specs):
        reasons.append(f"wave {rest[0]} takes the rest, so nothing is left for wave {rest[0] + 1}")
    return reasons


def _control_reasons(assignments: Assignments) -> list[str]:
    left = len(assignments.rows)
    reasons = []
    for wave, size in enumerate(assignments.sizes, 1):
        left -= size
        if size and left <= 0:
            reasons.append(
                f"wave {wave} leaves no control: its {size} units are all that remain; "
                "hold some back"
            )
    return reasons


def _time_reasons(plan: Mapping[str, Any], specs: Sequence[WaveSpec]) -> list[str]:
    reasons = []
    burn_in, least = float(plan["burn_in_hours"]), float(plan["min_exposure_hours"])
    for wave, spec in enumerate(specs, 1):
        hours = spec.window_hours
        longest = hours * (1 + float(plan.get("extension", 0)))
        if hours <= burn_in:
            reasons.append(
                f"wave {wave}: a window of {hours:g} h is not longer than the burn-in of "
                f"{burn_in:g} h"
            )
        elif longest < least:
            reasons.append(
                f"wave {wave}: a window of {hours:g} h, {longest:g} h if extended, never reaches "
                f"the least observation of {least:g} h"
            )
        if hours * 60 < float(plan["look_minutes"]):
            reasons.append(
                f"wave {wave}: a window of {hours:g} h is over before the first look after "
                f"{plan['look_minutes']:g} min"
            )
    return reasons


def _block_reasons(
    plan: Mapping[str, Any], specs: Sequence[WaveSpec], *, sizes: Sequence[int]
) -> list[str]:
    """Say which waves end before their last install block has been observed long enough.

    The window runs from the first block on, the least observation from the last one. However
    fast a block is installed, it is not installed at the same time as the one before it.
    """
    least, batch_size = float(plan["min_exposure_hours"]), plan.get("batch_size")
    reasons = []
    for wave, (spec, size) in enumerate(zip(specs, sizes, strict=True), 1):
        longest = spec.window_hours * (1 + float(plan.get("extension", 0)))
        blocks = batch_count(size, batch_size=batch_size)
        if blocks > 1 and longest == least:
            reasons.append(
                f"wave {wave}: its {size} canaries are installed in {blocks} blocks of at most "
                f"{batch_size} (batch_size), and the last of them is never observed for "
                f"{least:g} h: the window, extension included, is over {longest:g} h after the "
                "first; take a longer window or fewer blocks"
            )
    return reasons


def _window_reasons(plan: Mapping[str, Any]) -> list[str]:
    windows = plan.get("windows", ())
    needed = longest_attempt(plan) / timedelta(minutes=1) if windows else 0
    return [
        f"windows[{position}]: {window['duration_minutes']:g} min are shorter than the "
        f"{needed:g} min that an attempt may take from its install to its read-back"
        for position, window in enumerate(windows)
        if window["duration_minutes"] < needed
    ]


def _cap_reasons(caps: Mapping[str, Any]) -> list[str]:
    return [
        f"caps.{name} of {value:g} lets no machine start; more than 0 or null is accepted"
        for name, value in sorted(caps.items())
        if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0
    ]


def _metric_reasons(
    guardrails: Sequence[Mapping[str, Any]], *, metrics: Collection[str]
) -> list[str]:
    if not guardrails:
        return ["a plan needs at least one guardrail"]
    return [
        f"unknown metric {guardrail['metric']!r}; accepted: {', '.join(sorted(metrics))}"
        for guardrail in guardrails
        if guardrail["metric"] not in metrics
    ]


def _design_reasons(
    assignments: Assignments,
    *,
    alphas: Mapping[str, float | Fraction],
    batch_size: int | None,
) -> list[str]:
    reasons = []
    for wave, size in enumerate(assignments.sizes, 1):
        cells = cells_of(assignments, wave=wave, batch_size=batch_size) if size else []
        blind = sorted(name for name, alpha in alphas.items() if not can_reach(cells, alpha=alpha))
        if size and blind:
            smallest = math.exp(-log_assignments(cells))
            level = float(min(alphas[name] for name in blind))
            reasons.append(
                f"wave {wave} is too small to find harm in {', '.join(blind)}: its assignment "
                f"allows no p-value below {smallest:.3g}, but {level:.3g} is needed; "
                "take more canaries or fewer guardrails"
            )
    return reasons


def _resample_reasons(
    plan: Mapping[str, Any],
    assignments: Assignments,
    *,
    alphas: Mapping[str, float | Fraction],
    most_enumerated: int,
) -> list[str]:
    """A guardrail whose level is less than one path of those drawn can never halt."""
    paths = plan["resamples"] + 1
    blind = sorted(name for name, alpha in alphas.items() if paths * Fraction(alpha) < 1)
    is_sampled = any(
        size and _is_sampled(assignments, wave, plan.get("batch_size"), most_enumerated)
        for wave, size in enumerate(assignments.sizes, 1)
    )
    if not (blind and is_sampled):
        return []
    level = min(Fraction(alphas[name]) for name in blind)
    reason = (
        f"resamples: {plan['resamples']} re-assignments allow no p-value below {1 / paths:.3g}, "
        f"but {float(level):.3g} is needed to find harm in {', '.join(blind)}; "
        f"draw at least {math.ceil(1 / level) - 1}"
    )
    return [reason]


def _is_sampled(
    assignments: Assignments, wave: int, batch_size: int | None, most_enumerated: int
) -> bool:
    cells = cells_of(assignments, wave=wave, batch_size=batch_size)
    return log_assignments(cells) > math.log(most_enumerated + 0.5)
