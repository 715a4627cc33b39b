"""Draft files: all that a draft is made of, as JSON, TOML or YAML."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from django.db.models import CharField, Model, QuerySet, Value
from django.db.models.functions import Cast, Concat

from fleet.errors import SelectorError
from fleet.models import FirmwareBundle
from fleet.selectors import machines_matching
from rollouts import policies
from rollouts.errors import PolicyRefused
from rollouts.models import Policy, Rollout

#: What a file may say, and what of it has to be said.
FIELDS = ("name", "bundle", "selector", "plan", "policy", "mode", "seed")
NEEDED = ("name", "bundle", "selector")
MOST_SEED = 2**62


def read_draft(path: Path) -> dict[str, Any]:
    """Read what `services.draft_of` takes from a file.

    A bundle is named as `bmc 2.0`, a policy as `house` (its newest version) or `house v2`; either
    may be said by its identifier instead.

    Raises
    ------
    PolicyRefused
        With everything that is wrong in the file at once.
    """
    said = policies.load_document(path)
    found: dict[str, Any] = {}
    reasons = [*_unknown(said), *_missing(said)]
    for name in set(FIELDS) & set(said):
        try:
            found[name] = _READERS[name](said[name])
        except ValueError as error:
            reasons.append(f"{name}: {error}")
    if {"plan", "policy"} & set(said) <= set(found):
        reasons += _breaches(found)
    if reasons:
        raise PolicyRefused(sorted(reasons), source=str(path))
    return {"document": found.pop("plan", {}), **found}


def _unknown(said: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(set(said) - set(FIELDS)):
        is_of_plan = name in policies.properties(policies.schema()["$defs"][policies.Kind.PLAN])
        hint = "; it belongs into `plan`" if is_of_plan else ""
        yield f"{name}: unknown key{hint}; accepted: {', '.join(FIELDS)}"


def _missing(said: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name}: missing" for name in NEEDED if name not in said)


def _breaches(found: Mapping[str, Any]) -> Iterator[str]:
    """Say every breach of the schema of the plan that the file and its policy make together."""
    base = found["policy"].document if found.get("policy") else {}
    document = {**base, **found.get("plan", {})}
    try:
        policies.check(document, kind=policies.Kind.PLAN)
    except PolicyRefused as error:
        yield from (f"plan: {reason}" for reason in error.reasons)


# --- one field ------------------------------------------------------------------------------------


def _name(value: Any) -> str:
    name = _text(value, most=200)
    if Rollout.objects.filter(name=name).exists():
        raise ValueError(f"a rollout is called {name!r} already; preview it by its name")
    return name


def _selector(value: Any) -> str:
    selector = _text(value, most=1000)
    try:
        machines_matching(selector)
    except SelectorError as error:
        raise ValueError(str(error)) from error
    return selector


def _bundle(value: Any) -> Model:
    rows = FirmwareBundle.objects.annotate(said=Concat("name", Value(" "), "version"))
    return _row(rows, value, called=rows.filter(said=str(value)))


def _policy(value: Any) -> Model:
    rows = Policy.objects.annotate(said=Concat("name", Value(" v"), Cast("version", CharField())))
    return _row(rows, value, called=rows.filter(said=str(value)) or rows.filter(name=str(value)))


def _row(rows: QuerySet[Any], value: Any, *, called: QuerySet[Any]) -> Model:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is neither a name nor an identifier")
    row: Model | None = (rows.filter(pk=value) if isinstance(value, int) else called).first()
    if row is None:
        known = ", ".join(map(str, rows[:20])) or "none"
        raise ValueError(f"{value!r} is not known; known: {known}")
    return row


def _mode(value: Any) -> str:
    if value not in Rollout.Mode.values:
        raise ValueError(f"{value!r} is not accepted; accepted: {', '.join(Rollout.Mode.values)}")
    return str(value)


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SEED:
        raise ValueError(f"{value!r} is not a whole number from 0 to {MOST_SEED}")
    return value


def _plan(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object of fields")
    apart = sorted({"selector", "mode"} & set(value))
    if apart:
        raise ValueError(f"{', '.join(apart)}: said beside the plan, not in it")
    return value


def _text(value: Any, *, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value.strip()) <= most:
        raise ValueError(f"{value!r} is not a text of 1 to {most} characters")
    return value.strip()


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "name": _name,
    "bundle": _bundle,
    "selector": _selector,
    "plan": _plan,
    "policy": _policy,
    "mode": _mode,
    "seed": _seed,
}
