"""Policy files: read, check against `policy.schema.json`, fill in defaults, freeze.

The schema is the one place of every default; nothing here repeats a number of it.
"""

import difflib
import functools
import itertools
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import yaml
from jsonschema import Draft202012Validator

from rollouts.analysis.policy import NODE_PROBE, Guardrail, Metric, Policy, WorkloadCondition
from rollouts.errors import PolicyRefused
from rollouts.planning.windows import freeze_reasons, window_reasons

SCHEMA_PATH = Path(__file__).with_name("policy.schema.json")

Document: TypeAlias = dict[str, Any]


class Kind(StrEnum):
    """What a document extends the shared core to; the names of the schema's definitions."""

    CASE = "case"
    PLAN = "plan"


@functools.cache
def schema() -> Document:
    """The JSON Schema of policies, as shipped."""
    document: Document = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return document


# --- reading -------------------------------------------------------------------------------


def load_policy(path: Path, *, kind: Kind = Kind.CASE) -> Document:
    """Read and check a JSON, TOML or YAML policy file; defaults are not filled in yet."""
    document = load_document(path)
    check(document, kind=kind, source=str(path))
    return document


def load_document(path: Path) -> Document:
    """Read a JSON, TOML or YAML file that holds one object of fields; what it says is unchecked."""
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: {error.reason} at byte {error.start}"
        raise PolicyRefused([reason], source=source) from error
    except OSError as error:
        raise PolicyRefused([f"cannot be read: {error.strerror}"], source=source) from error
    return parsed(text, suffix=path.suffix.lower(), source=source)


def parsed(text: str, *, suffix: str, source: str) -> Document:
    """Read an object from text in the way that the suffix says; twice the same key is refused."""
    readers: dict[str, Callable[[str], Any]] = {
        ".json": _from_json,
        ".toml": tomllib.loads,
        ".yaml": _from_yaml,
        ".yml": _from_yaml,
    }
    if suffix not in readers:
        raise PolicyRefused(
            [f"unknown kind of file {suffix!r}; accepted: .json, .toml, .yaml, .yml"],
            source=source,
        )
    try:
        document = _plain(readers[suffix](text))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise PolicyRefused([f"not valid {suffix[1:].upper()}: {error}"], source=source) from error
    if not isinstance(document, dict):
        raise PolicyRefused(
            [f"holds {_shown(document)}; accepted: one object of fields"], source=source
        )
    return document


MOST_VALUES = 100_000
"""Of a document; no plan and no policy of a case comes near."""


def _from_json(text: str) -> Any:
    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a number")

    return json.loads(text, parse_constant=refuse, object_pairs_hook=_unique_pairs)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, _ in pairs:
        _key(key)
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"the key {key!r} stands there {times} times")
    return dict(pairs)


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of equal keys silently; here they are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        return _unique_pairs(
            [
                (
                    self.construct_object(key, deep=True),
                    self.construct_object(value, deep=True),
                )
                for key, value in node.value
            ]
        )


def _from_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_UniqueKeyLoader)


def _plain(value: Any, values: Iterator[int] | None = None) -> Any:
    """Turn what TOML and YAML know beyond JSON (times, NaN, other keys) to JSON or refuse it.

    YAML may name one value many times over, and a few lines of it hold more than any memory.
    """
    values = values or itertools.count(1)
    if next(values) > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES} values")
    match value:
        case dict():
            return {_key(key): _plain(item, values) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, values) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        case str() | bool() | int() | float() | None:
            return value
    raise ValueError(f"{value!r} has no counterpart in JSON")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is not text")
    return key


# --- checking ------------------------------------------------------------------------------


def check(document: Document, *, kind: Kind, source: str = "policy") -> None:
    """Refuse a document that breaks the schema or contradicts itself; name every reason."""
    validator = Draft202012Validator(
        {"$ref": f"#/$defs/{kind}", "$defs": schema()["$defs"]},
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )
    errors = sorted(validator.iter_errors(document), key=lambda error: list(map(str, error.path)))
    reasons = [reason for error in errors for reason in _explain(error, kind=kind)]
    reasons += _beyond_reach(document)
    if not reasons:
        reasons = list(_contradictions(document, kind=kind))
    if reasons:
        raise PolicyRefused(list(dict.fromkeys(reasons)), source=source)


def _beyond_reach(document: Document) -> Iterator[str]:
    """What fits its type and still cannot be stored, or added to a time.

    A schema says neither of all numbers and texts at once; and what it says of one of them would
    be forgotten with the next.
    """
    for place, key, value in _leaves(document, place=""):
        if isinstance(value, str) and not _is_storable(value):
            yield f"{place}: {_shown(value)} holds what no database keeps as text"
        if isinstance(value, str) and len(value) > _LONGEST_TEXT:
            yield f"{place[:80]}: {len(value)} characters; accepted: at most {_LONGEST_TEXT}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if key == "seed":  # no quantity: one of 62 bits is as good as another
            most, least = 2.0**63, 0.0
        else:
            most, least = _limits(key)
        if not -most <= value <= most:  # NaN is not either
            yield f"{place}: {_short(value)} is beyond {most:g}, the largest accepted value"
        elif 0 < value < least:
            yield f"{place}: {value} is less than a second, {least:.4g}"


def _is_storable(text: str) -> bool:
    return "\x00" not in text and text == text.encode(errors="ignore").decode()


#: Units of time by how a field ends, in seconds.
_UNITS = {"_minutes": 60.0, "_hours": 3600.0, "_days": 86400.0}
_LONGEST_DAYS = 3660.0  # ten years: no plan looks further, and no sum of such leaves the calendar
_LARGEST = 1e9
_LONGEST_TEXT = 1000  # as long as a selector may be; names and patterns are far shorter


def _limits(key: str) -> tuple[float, float]:
    """Return the largest accepted number of a field and, of a length of time, the least above 0."""
    for ending, seconds in _UNITS.items():
        if key.endswith(ending):
            return _LONGEST_DAYS * _UNITS["_days"] / seconds, 1 / seconds
    return _LARGEST, 0.0


def _leaves(value: Any, *, place: str, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield every key and plain value of a document, with its place and the field it is of."""
    if isinstance(value, dict):
        for name, item in value.items():
            here = f"{place}.{name}".lstrip(".")
            yield here, "", name
            yield from _leaves(item, place=here, key=str(name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _leaves(item, place=f"{place}[{position}]", key=key)
    else:
        yield place or "the document", key, value


def _short(value: float) -> str:
    return f"a number of {value.bit_length()} bits" if _is_long(value) else repr(value)


def _is_long(value: float) -> TypeGuard[int]:
    return isinstance(value, int) and value.bit_length() > 64


def _explain(error: Any, *, kind: Kind) -> Iterator[str]:
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        yield from _unknown_keys(error, kind=kind)
        return
    if error.validator == "oneOf" and error.schema.get("type") == "object":
        yield f"{_place(error)}: exactly one of {_alternatives(error)} is needed"
        return
    accepted = error.schema.get("description")
    hint = f" ({accepted})" if accepted and error.validator != "required" else ""
    yield f"{_place(error)}: {_wrong(error)}{hint}"


def _unknown_keys(error: Any, *, kind: Kind) -> Iterator[str]:
    known = set(properties(error.schema))
    for key in sorted(set(error.instance) - known):
        yield f"{_place(error, key)}: unknown key; {_suggestion(key, known, kind=kind)}"


def _suggestion(key: str, known: set[str], *, kind: Kind) -> str:
    other = Kind.PLAN if kind is Kind.CASE else Kind.CASE
    if key in properties(schema()["$defs"][other]) and "guardrails" in known:
        return f"it belongs to a {other}, this is a {kind}"
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    listing = f"accepted: {', '.join(sorted(known))}"
    return f"did you mean {close[0]!r}? {listing}" if close else listing


def _wrong(error: Any) -> str:
    seen, limit = _shown(error.instance), error.validator_value
    match error.validator:
        case "type":
            names = [limit] if isinstance(limit, str) else limit
            return f"{seen} is not of type {' or '.join(names)}"
        case "enum":
            close = difflib.get_close_matches(str(error.instance), [str(x) for x in limit], n=1)
            guess = f"; did you mean {close[0]!r}?" if close else ""
            return f"{seen} is not accepted; accepted: {', '.join(map(_shown, limit))}{guess}"
        case "const":
            return f"{seen} is not accepted; accepted: {_shown(limit)}"
        case "minimum":
            return f"{seen} is below the least accepted value {limit}"
        case "exclusiveMinimum":
            return f"{seen} is not above {limit}"
        case "maximum":
            return f"{seen} is above the largest accepted value {limit}"
        case "exclusiveMaximum":
            return f"{seen} is not below {limit}"
        case "minItems" | "minLength":
            return f"{seen} is empty; accepted: at least {limit}"
        case "maxItems" | "maxLength" | "maxProperties":
            return f"{len(error.instance)} of {seen}; accepted: at most {limit}"
        case "uniqueItems":
            return f"{seen} holds an item twice"
    return error.message


def _alternatives(error: Any) -> str:
    return ", ".join(name for option in error.validator_value for name in option["required"])


def _place(error: Any, key: str | None = None) -> str:
    parts = [*error.absolute_path, *([key] if key is not None else [])]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or "the document"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _contradictions(document: Document, *, kind: Kind) -> Iterator[str]:
    """What a schema cannot say."""
    filled = with_defaults(document, kind=kind)
    names = Counter(guardrail_name(item) for item in filled["guardrails"])
    for name, times in names.items():
        if times > 1:
            yield f"guardrails: {times} are called {name!r}; give each a `name` of its own"
    for position, item in enumerate(filled["guardrails"]):
        yield from _margin_below_tolerance(item, place=f"guardrails[{position}]")
    if sum(filled["weights"][item["metric"]] for item in filled["guardrails"]) <= 0:
        yield "weights: the guardrails' shares add up to 0; at least one must be positive"
    if kind is Kind.CASE:
        yield from _case_contradictions(document, filled)
        return
    yield from _probe_contradictions(filled)
    for position, item in enumerate(filled["windows"]):
        yield from window_reasons(item, place=f"windows[{position}]")
    for position, item in enumerate(filled["freezes"]):
        yield from freeze_reasons(item, place=f"freezes[{position}]")


def _probe_contradictions(filled: Document) -> Iterator[str]:
    """A probe has to be judged, by machine and apart from jobs, and what is judged be probed."""
    probed = [
        (position, item)
        for position, item in enumerate(filled["guardrails"])
        if NODE_PROBE in item.get("workloads", ())
    ]
    for position, item in probed:
        if item["workloads"] != [NODE_PROBE]:
            yield f"guardrails[{position}].workloads: node_probe is judged by itself"
        if (item["scope"] or filled["scope"]) != "machine":
            yield f"guardrails[{position}].scope: a node probe is of one machine; accepted: machine"
    if probed and filled["node_probe"] is None:
        yield "node_probe: null, but a guardrail is on the workload node_probe"
    if not probed and filled["node_probe"] is not None:
        yield (
            "node_probe: no guardrail is judged by it; accepted: a throughput guardrail with "
            'workloads ["node_probe"] and scope machine'
        )


def _margin_below_tolerance(item: Document, *, place: str) -> Iterator[str]:
    for margin, tolerance in (
        ("margin", "tolerance"),
        ("margin_ratio", "tolerance_ratio"),
    ):
        if item["metric"] == Metric.INSTALL or not {margin, tolerance} <= set(item):
            continue
        if item[margin] <= item[tolerance]:
            yield f"{place}.{margin}: {item[margin]} is not above the {tolerance} {item[tolerance]}"


def _case_contradictions(document: Document, filled: Document) -> Iterator[str]:
    both = set(filled["arms"]["canary"]) & set(filled["arms"]["control"])
    if both:
        yield f"arms: {', '.join(sorted(both))} cannot be canary and control at once"
    for field in ("looks", "burn_in_hours"):
        inner = document.get("window", {}).get(field)
        if inner is not None and field in document and document[field] != inner:
            yield f"window.{field}: {inner} contradicts {field}: {document[field]}"


# --- defaults ------------------------------------------------------------------------------


def properties(definition: Mapping[str, Any]) -> Document:
    """The properties of a definition with those of what it extends; its own win."""
    known: Document = {}
    for part in definition.get("allOf", ()):
        if "$ref" in part:
            known |= properties(_resolved(part))
    return known | definition.get("properties", {})


def _resolved(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = definition.get("$ref")
    if reference is None:
        return definition
    found: Mapping[str, Any] = schema()["$defs"][reference.rpartition("/")[2]]
    return found


def default(field: str, *, kind: Kind = Kind.CASE) -> Any:
    """The schema's default of one field.

    Examples
    --------
    >>> default("min_exposure_hours")
    24.0
    """
    return properties(schema()["$defs"][kind])[field]["default"]


def with_defaults(document: Document, *, kind: Kind) -> Document:
    """A copy with every field, the given value or the schema's default.

    Examples
    --------
    >>> with_defaults({"looks": 10}, kind=Kind.CASE)["looks"]
    10
    >>> with_defaults({}, kind=Kind.PLAN)["hold_back"]
    0.1
    """
    return _filled_object(document, schema()["$defs"][kind])


def _filled(value: Any, definition: Mapping[str, Any]) -> Any:
    definition = _resolved(definition)
    if isinstance(value, list) and "items" in definition:
        return [_filled(item, _item_definition(item, definition["items"])) for item in value]
    if isinstance(value, dict) and properties(definition):
        return _filled_object(value, definition)
    return value


def _filled_object(value: Document, definition: Mapping[str, Any]) -> Document:
    result = {}
    for key, own in properties(definition).items():
        if key in value:
            result[key] = _filled(value[key], own)
        elif "default" in own:
            result[key] = _filled(own["default"], own)
    return result


def _item_definition(item: Any, definition: Mapping[str, Any]) -> Mapping[str, Any]:
    definition = _resolved(definition)
    if definition is schema()["$defs"]["guardrail"]:
        found: Mapping[str, Any] = schema()["$defs"][f"{item['metric']}_guardrail"]
        return found
    return definition


# --- freezing ------------------------------------------------------------------------------


def plan_from(document: Document, *, source: str = "plan") -> Document:
    """A checked plan with every field filled in, ready to be frozen and signed."""
    check(document, kind=Kind.PLAN, source=source)
    return with_defaults(document, kind=Kind.PLAN)


def case_from(document: Document, *, source: str = "policy") -> Document:
    """A checked case policy with every field filled in; `window` takes `looks` and burn-in."""
    check(document, kind=Kind.CASE, source=source)
    filled = with_defaults(document, kind=Kind.CASE)
    for field in ("looks", "burn_in_hours"):
        if filled["window"][field] is None:
            filled["window"][field] = filled[field]
        filled[field] = filled["window"][field]
    return filled


def kind_of(document: Document) -> Kind:
    """Plans have waves, a selector or a mode; everything else is a case."""
    own = set(schema()["$defs"][Kind.PLAN]["properties"]) - set(
        properties(schema()["$defs"][Kind.CASE])
    )
    return Kind.PLAN if own & set(document) else Kind.CASE


def policy_from(document: Document, *, kind: Kind | None = None) -> Policy:
    """The frozen shared core of a plan or case, defaults filled in.

    Examples
    --------
    >>> policy = policy_from({"guardrails": [{"metric": "faults", "signatures": ["DBE"]}]})
    >>> policy.guardrails[0].name, policy.guardrails[0].margin, policy.resamples
    ('faults:DBE', 2.0, 19999)
    """
    kind = kind or kind_of(document)
    filled = plan_from(document) if kind is Kind.PLAN else case_from(document)
    return Policy(
        guardrails=tuple(
            guardrail_from(item, scope=filled["scope"]) for item in filled["guardrails"]
        ),
        weights={Metric(name): share for name, share in filled["weights"].items()},
        unit=filled["unit"],
        strata=tuple(filled["strata"]),
        covariates=dict(filled["covariates"]),
        workload_conditions=tuple(map(condition_from, filled.get("workload_conditions", ()))),
        **{field: filled[field] for field in _COPIED},
    )


_COPIED = (
    "alpha",
    "beta",
    "seed",
    "resamples",
    "gap_minutes",
    "looks",
    "burn_in_hours",
    "min_exposure_hours",
    "extension",
    "smoke_widen",
    "max_excess_faults",
    "max_bricks",
    "delta_abs",
    "hold_back",
    "surveillance_days",
    "purity_floor",
)


def condition_from(item: Document) -> WorkloadCondition:
    """One workload condition from its filled-in document; as many controls as canaries.

    Examples
    --------
    >>> condition_from({"workloads": ["pretraining"], "least_canaries": 5, "least_controls": None,
    ...                 "least_share": 0.5, "least_hours": 1.0}).least_controls
    5
    """
    controls = item["least_controls"]
    return WorkloadCondition(
        workloads=tuple(item["workloads"]),
        least_canaries=item["least_canaries"],
        least_controls=item["least_canaries"] if controls is None else controls,
        least_share=float(item["least_share"]),
        least_hours=float(item["least_hours"]),
    )


def guardrail_from(item: Document, *, scope: str) -> Guardrail:
    """One guardrail from its filled-in document."""
    return Guardrail(
        name=guardrail_name(item),
        metric=Metric(item["metric"]),
        required=_or_auto(item["required"]),
        halt=item["halt"],
        margin=_first(item, "margin_ratio", "margin"),
        tolerance=_first(item, "tolerance_ratio", "tolerance"),
        signatures=tuple(item.get("signatures", ("*",))),
        workloads=tuple(item.get("workloads", ())),
        paths=dict(item.get("paths", {})),
        scope=item["scope"] or scope,
        ends_service=_or_auto(item.get("ends_service", "auto")),
    )


def _first(item: Document, *names: str) -> float:
    """The first of these fields that the metric has; 0 where it has none, as it needs none."""
    return next((float(item[name]) for name in names if name in item), 0.0)


def _or_auto(value: bool | str) -> bool | None:
    return value if isinstance(value, bool) else None


def guardrail_name(item: Document) -> str:
    """The given name, else the metric, for fault families with their patterns.

    Examples
    --------
    >>> guardrail_name({"metric": "faults", "signatures": ["DBE", "OTB"]})
    'faults:DBE+OTB'
    """
    if item.get("name"):
        return str(item["name"])
    patterns = item.get("signatures", ["*"])
    if item["metric"] != Metric.FAULTS or patterns == ["*"]:
        return str(item["metric"])
    return f"faults:{'+'.join(patterns)}"
