"""The gate's state machine, and how one result is judged against its rule. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from fleet.errors import IllegalGateMove


class Status(StrEnum):
    """How far a gate has come; the last three are its ends."""

    OPEN = "open"
    OBSERVING = "observing"
    AWAITING_REVIEW = "awaiting_review"
    PASSED = "passed"
    FAILED = "failed"
    VOID = "void"


class Move(StrEnum):
    """What moves a gate on. A green health check is not among them."""

    OBSERVE = "observe"
    SEND_TO_REVIEW = "to_review"
    FAIL = "fail"
    ACCEPT = "accept"
    REJECT = "reject"
    VOID = "void"


class Stage(StrEnum):
    """The order in which a gate's checks are run: each stage begins once the one before passed."""

    FIRMWARE = "firmware"
    FOCUSED = "focused"
    REPRESENTATIVE = "representative"
    OBSERVATION = "observation"


UNFINISHED = (Status.OPEN, Status.OBSERVING, Status.AWAITING_REVIEW)

MOVES: Mapping[tuple[Status, Move], Status] = {
    (Status.OPEN, Move.OBSERVE): Status.OBSERVING,
    (Status.OPEN, Move.SEND_TO_REVIEW): Status.AWAITING_REVIEW,
    (Status.OPEN, Move.FAIL): Status.FAILED,
    (Status.OBSERVING, Move.FAIL): Status.FAILED,
    (Status.OBSERVING, Move.SEND_TO_REVIEW): Status.AWAITING_REVIEW,
    (Status.AWAITING_REVIEW, Move.ACCEPT): Status.PASSED,
    (Status.AWAITING_REVIEW, Move.REJECT): Status.FAILED,
    **{(status, Move.VOID): Status.VOID for status in UNFINISHED},
}


def next_status(status: Status, move: Move) -> Status:
    """Return the status that `move` leads to.

    Raises
    ------
    IllegalGateMove
        If the table has no such move; the message lists what is possible.

    Examples
    --------
    >>> next_status(Status.AWAITING_REVIEW, Move.ACCEPT)
    <Status.PASSED: 'passed'>
    """
    try:
        return MOVES[status, move]
    except KeyError:
        raise IllegalGateMove(
            f"a gate that is {status} cannot {move}; possible: {possible_moves(status)}"
        ) from None


def possible_moves(status: Status) -> str:
    """Return in words which moves a gate of this status has."""
    return ", ".join(sorted(move for old, move in MOVES if old is status)) or "none"


# --- rules -------------------------------------------------------------------

#: Results of the fleet that count towards its norm, and how few are too few.
NORM_DAYS = 90
FEWEST = 10
_MAD_TO_SD = 1.4826  # for normal data, the median absolute deviation times this is the sd

_ABSOLUTE = {">=": "value", "<=": "value", "equals": "value", "between": "low, high"}


class Computed(StrEnum):
    """Checks that the product makes itself, of what was read back; nobody reports them."""

    VERSIONS = "versions"
    PARTS = "parts"
    SETTINGS = "settings"
    FAULTS = "faults"
    BOOTS = "boots"


@dataclass(frozen=True)
class Judgement:
    """Whether a value passes, against what, and what has to be said besides."""

    is_passed: bool
    threshold: str
    note: str = ""


def judge(
    value: float | None, *, rule: Mapping[str, Any], unit: str, norm: Sequence[float] = ()
) -> Judgement:
    """Judge one value against the rule of its check; what cannot be decided fails.

    Parameters
    ----------
    value : float or None
        As reported; None is a check that gave no value, which fails.
    rule : mapping
        `kind` is `>=`, `<=`, `equals` (with `value`), `between` (with `low`, `high`) or `norm`:
        against the median of the fleet's own results, at least or at most (`side`) or within a
        `share` of it or a number of `mads` (median absolute deviations, scaled to standard
        deviations). A `fallback` is the absolute rule while the fleet has fewer than `fewest`.
    norm : sequence of float
        What the fleet's own passed results were.

    Examples
    --------
    >>> judge(412.0, rule={"kind": ">=", "value": 400}, unit="GB/s")
    Judgement(is_passed=True, threshold='>= 400 GB/s', note='')
    >>> judge(0.93, rule={"kind": "norm", "side": "at_least", "share": 0.05}, unit="", norm=[1.0])
    ... # doctest: +ELLIPSIS
    Judgement(is_passed=False, threshold='not decidable', note='1 result of the fleet, 10 are...
    """
    threshold, low, high, note = _bounds(rule, unit=unit, norm=norm)
    if value is None:
        return Judgement(False, threshold, _joined("no value was reported", note))
    if low is None and high is None:
        return Judgement(False, threshold, note)
    is_passed = (low is None or value >= low) and (high is None or value <= high)
    return Judgement(is_passed, threshold, note)


def _bounds(
    rule: Mapping[str, Any], *, unit: str, norm: Sequence[float]
) -> tuple[str, float | None, float | None, str]:
    if rule["kind"] != "norm":
        return (*_absolute(rule, unit=unit), "")
    fewest = int(rule.get("fewest", FEWEST))
    if len(norm) >= fewest:
        return (*_against(norm, rule=rule, unit=unit), "")
    results = "result" if len(norm) == 1 else "results"
    note = f"{len(norm)} {results} of the fleet, {fewest} are needed for its norm"
    if "fallback" not in rule:
        return "not decidable", None, None, f"{note}; there is no absolute threshold"
    return (*_absolute(rule["fallback"], unit=unit), f"{note}; the absolute threshold holds")


def _absolute(rule: Mapping[str, Any], *, unit: str) -> tuple[str, float | None, float | None]:
    kind = rule["kind"]
    if kind == "between":
        low, high = float(rule["low"]), float(rule["high"])
        return f"{_shown(low)} to {_shown(high)} {unit}".strip(), low, high
    value = float(rule["value"])
    words = f"{'=' if kind == 'equals' else kind} {_shown(value)} {unit}".strip()
    low_high = {">=": (value, None), "<=": (None, value), "equals": (value, value)}[kind]
    return words, *low_high


def _against(
    norm: Sequence[float], *, rule: Mapping[str, Any], unit: str
) -> tuple[str, float | None, float | None]:
    """Return the bounds about the fleet's median."""
    middle = median(norm)
    if "share" in rule:
        width, how = abs(middle) * float(rule["share"]), f"{float(rule['share']):.0%}"
    else:
        spread = _MAD_TO_SD * median(abs(one - middle) for one in norm)
        width, how = float(rule["mads"]) * spread, f"{_shown(float(rule['mads']))} MAD"
    low, high = middle - width, middle + width
    about = f"{how} of the fleet's median {_shown(middle)} of {len(norm)}"
    match rule["side"]:
        case "at_least":
            return f">= {_shown(low)} {unit} ({about})", low, None
        case "at_most":
            return f"<= {_shown(high)} {unit} ({about})", None, high
        case _:
            return f"{_shown(low)} to {_shown(high)} {unit} ({about})", low, high


def rule_in_words(rule: Mapping[str, Any], *, unit: str) -> str:
    """Return a rule as people read it, before any result is judged.

    Examples
    --------
    >>> rule_in_words({"kind": "norm", "side": "at_least", "share": 0.05}, unit="steps/h")
    "at least the fleet's median less 5%"
    """
    if rule["kind"] != "norm":
        return _absolute(rule, unit=unit)[0]
    by = f"{float(rule['share']):.0%}" if "share" in rule else f"{_shown(float(rule['mads']))} MAD"
    side = {
        "at_least": f"at least the fleet's median less {by}",
        "at_most": f"at most the fleet's median plus {by}",
        "within": f"within {by} of the fleet's median",
    }[rule["side"]]
    fallback = rule.get("fallback")
    return f"{side}, else {_absolute(fallback, unit=unit)[0]}" if fallback else side


def _shown(number: float) -> str:
    return f"{number:.6g}"


def _joined(*words: str) -> str:
    return "; ".join(word for word in words if word)


# --- plans -------------------------------------------------------------------

_CHECK_KEYS = {
    *("name", "title", "stage", "unit", "rule"),
    *("needs_evidence", "smoke_only", "partners", "hours"),
}
_NEEDED_KEYS = {"name", "title", "stage", "rule"}
MOST_CHECKS = 40
MOST_HOURS = 28 * 24


def run_hours(checks: Sequence[Mapping[str, Any]]) -> float:
    """Return how long the checks before the observation take by themselves, one after the other.

    Examples
    --------
    >>> run_hours([{"stage": "focused", "hours": 12}, {"stage": "observation", "hours": 24}])
    12.0
    """
    return float(sum(one.get("hours", 0) for one in checks if one["stage"] != Stage.OBSERVATION))


def plan_problems(checks: Any) -> list[str]:
    """Return everything that is wrong with the checks of a plan, in words; nothing if they hold.

    Examples
    --------
    >>> plan_problems([])
    ['checks: a plan needs at least one check']
    """
    if not isinstance(checks, list) or not all(isinstance(one, dict) for one in checks):
        return ["checks: a list of objects is needed"]
    if not checks:
        return ["checks: a plan needs at least one check"]
    if len(checks) > MOST_CHECKS:
        return [f"checks: {len(checks)}, at most {MOST_CHECKS} are accepted"]
    problems = [
        f"checks[{at}].{problem}" for at, one in enumerate(checks) for problem in _problems(one)
    ]
    names = [one.get("name") for one in checks]
    twice = sorted({str(name) for name in names if name is not None and names.count(name) > 1})
    problems += [f"checks: {name!r} is there twice" for name in twice]
    return problems or _order_problems(checks)


def _problems(check: Mapping[str, Any]) -> list[str]:
    problems = [f"{name}: unknown; accepted: {_named(_CHECK_KEYS)}" for name in _odd(check)]
    problems += [f"{name}: is missing" for name in sorted(_NEEDED_KEYS - set(check))]
    if problems:
        return problems
    for name, most in (("name", 60), ("title", 200), ("unit", 20)):
        if not _is_text(check.get(name, ""), most=most, may_be_empty=name == "unit"):
            problems.append(f"{name}: {check.get(name)!r}, a text of at most {most} is needed")
    hours = check.get("hours", 0)
    if not _is_number({"hours": hours}, "hours") or not 0 <= hours <= MOST_HOURS:
        problems.append(f"hours: {hours!r}, 0 to {MOST_HOURS} are accepted")
    if check["stage"] not in list(Stage):
        problems.append(f"stage: {check['stage']!r}; accepted: {_named(Stage)}")
    return [*problems, *(f"rule: {problem}" for problem in rule_problems(check["rule"]))]


def _odd(check: Mapping[str, Any]) -> list[str]:
    return sorted(str(name) for name in check if name not in _CHECK_KEYS)


def _is_text(value: object, *, most: int, may_be_empty: bool) -> bool:
    if not isinstance(value, str) or not value.isprintable() or len(value) > most:
        return False
    return may_be_empty or bool(value.strip())


def rule_problems(rule: Any) -> list[str]:
    """Return what is wrong with one rule, in words."""
    if not isinstance(rule, dict):
        return [f"{rule!r}, an object with a kind is needed"]
    kind = rule.get("kind")
    if kind == "norm":
        return _norm_problems(rule)
    if kind not in _ABSOLUTE:
        return [f"kind is {kind!r}; accepted: {_named({*_ABSOLUTE, 'norm'})}"]
    needed = _ABSOLUTE[kind].split(", ")
    missing = [
        f"{name}: a finite number is needed" for name in needed if not _is_number(rule, name)
    ]
    if not missing and kind == "between" and rule["low"] > rule["high"]:
        return [f"low {rule['low']} is above high {rule['high']}"]
    computed = rule.get("computed")
    if computed is not None and computed not in list(Computed):
        return [*missing, f"computed is {computed!r}; accepted: {_named(Computed)}"]
    return missing


def _norm_problems(rule: Mapping[str, Any]) -> list[str]:
    sides = ("at_least", "at_most", "within")
    problems = []
    if rule.get("side") not in sides:
        problems.append(f"side is {rule.get('side')!r}; accepted: {_named(sides)}")
    widths = [name for name in ("share", "mads") if name in rule]
    if len(widths) != 1 or not _is_number(rule, widths[0]) or rule[widths[0]] < 0:
        problems.append("either share or mads is needed, a number of at least 0")
    if "fewest" in rule and not (isinstance(rule["fewest"], int) and rule["fewest"] >= 1):
        problems.append(f"fewest is {rule['fewest']!r}, a whole number of at least 1 is needed")
    fallback = rule.get("fallback")
    if fallback is not None:
        is_absolute = isinstance(fallback, dict) and fallback.get("kind") in _ABSOLUTE
        found = rule_problems(fallback) if is_absolute else ["an absolute rule is needed"]
        problems += [f"fallback: {problem}" for problem in found]
    return problems


def _is_number(rule: Mapping[str, Any], name: str) -> bool:
    value = rule.get(name)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _order_problems(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Refuse stages out of order, and plans that leave out what every gate asks."""
    stages = [list(Stage).index(Stage(one["stage"])) for one in checks]
    if stages != sorted(stages):
        return [f"checks: in the order of their stages: {', '.join(Stage)}"]
    computed = {one["rule"].get("computed") for one in checks}
    always = (Computed.VERSIONS, Computed.PARTS, Computed.SETTINGS, Computed.FAULTS)
    return [f"checks: {name} is part of every gate" for name in always if name not in computed]


def _named(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
