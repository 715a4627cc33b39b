"""Policy files: the schema is the one place of defaults, and mistakes are named."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rollouts.analysis.policy import Metric, Policy
from rollouts.errors import PolicyRefused
from rollouts.policies import (
    Kind,
    load_policy,
    plan_from,
    policy_from,
    properties,
    schema,
    with_defaults,
)

MANY_TIMES_OVER = [
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]"
    for before, name in pairwise("abcdefghijklmnop")
]
"""Ten of ten of ten: 10¹⁵ values in a few hundred characters of YAML."""
CASES = Path(__file__).parents[2] / "docs" / "cases"


def refused(document: dict, *, kind: Kind = Kind.CASE) -> list[str]:
    with pytest.raises(PolicyRefused) as caught:
        policy_from(document, kind=kind)
    return caught.value.reasons


def test_the_schema_is_valid_json_schema_2020_12():
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("kind", list(Kind))
def test_every_field_has_a_description_and_a_default(kind):
    fields = properties(schema()["$defs"][kind])

    assert [name for name, field in fields.items() if "default" not in field] == []
    assert [name for name, field in fields.items() if not field.get("description")] == []


def lists_in(part: Any, *, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every list, and every object of free keys, that the schema lets somebody write."""
    if isinstance(part, dict):
        if part.get("type") == "array":
            yield place, part.get("maxItems")
        if isinstance(part.get("additionalProperties"), dict):
            yield place, part.get("maxProperties")
        for key, inner in part.items():
            yield from lists_in(inner, place=f"{place}/{key}")


def test_every_list_of_a_policy_has_an_end():
    found = dict(lists_in(schema()["$defs"]))

    assert len(found) > 15
    assert [place for place, most in found.items() if most is None] == []


@pytest.mark.parametrize("kind", list(Kind))
def test_the_defaults_of_the_schema_obey_the_schema(kind):
    filled = with_defaults({}, kind=kind)

    assert policy_from(filled, kind=kind) == policy_from({}, kind=kind)


@pytest.mark.parametrize("metric", list(Metric))
def test_every_metric_has_a_guardrail_definition_and_a_weight(metric):
    policy = policy_from({"guardrails": [{"metric": metric.value}]})

    assert policy.guardrails[0].metric is metric
    assert policy.weights[metric] > 0


def test_the_default_policy_is_the_table_of_estimands():
    policy = policy_from({})

    table = {g.metric: (g.margin, g.tolerance, g.required) for g in policy.guardrails}
    assert table == {
        Metric.FAULTS: (2.0, 1.0, None),
        Metric.THROUGHPUT: (0.02, 0.01, True),
        Metric.NOVEL_SIGNATURES: (0.0, 0.0, False),
        Metric.RECOVERY_TIME: (1.5, 1.0, None),
        Metric.SEVERE_PATH: (0.15, 0.0, None),
        Metric.LOST_WORK: (0.0, 0.0, False),
        Metric.INSTALL: (0.04, 0.01, None),
        Metric.TELEMETRY: (0.05, 0.0, None),
    }
    assert sum(policy.weights.values()) == pytest.approx(1)


def test_the_schema_and_the_dataclass_agree_on_every_default():
    bare = Policy(guardrails=policy_from({}).guardrails, weights=policy_from({}).weights)

    assert policy_from({}, kind=Kind.PLAN) == Policy(
        guardrails=policy_from({}, kind=Kind.PLAN).guardrails, weights=bare.weights
    )


def test_a_recorded_case_has_no_extension_and_judges_by_machine():
    case, plan = policy_from({}, kind=Kind.CASE), policy_from({}, kind=Kind.PLAN)

    assert (case.extension, plan.extension) == (0, 0.5)
    assert {g.scope for g in case.guardrails} == {"machine"}
    assert {g.scope for g in plan.guardrails} == {"job"}


def test_the_default_plan_has_four_waves_and_smoke_widening_on_the_first_two():
    plan = plan_from({"selector": "platform=dgx-h100"})

    sizes = [wave.get("count", "rest") for wave in plan["waves"]]
    assert sizes == [20, 100, 400, "rest"]
    assert [wave["window_hours"] for wave in plan["waves"]] == [72, 168, 168, 336]
    assert [wave["allows_smoke"] for wave in plan["waves"]] == [True, True, False, False]


def test_a_filled_plan_reads_back_as_the_same_policy():
    plan = plan_from({"alpha": 0.01, "guardrails": [{"metric": "faults"}]})

    assert plan_from(plan) == plan
    assert policy_from(plan).alpha == 0.01


@pytest.mark.parametrize(
    ("signatures", "name"),
    [(["*"], "faults"), (["DBE"], "faults:DBE"), (["DBE", "OTB"], "faults:DBE+OTB")],
)
def test_fault_guardrails_are_named_by_their_family(signatures, name):
    policy = policy_from({"guardrails": [{"metric": "faults", "signatures": signatures}]})

    assert policy.guardrails[0].name == name


def test_auto_is_unknown_until_judged():
    auto, never = policy_from(
        {
            "guardrails": [
                {"metric": "faults"},
                {"metric": "throughput", "required": False},
            ]
        }
    ).guardrails

    assert (auto.required, auto.ends_service, never.required) == (None, None, False)


def test_looks_and_burn_in_may_stand_in_the_window():
    policy = policy_from({"window": {"looks": 24, "burn_in_hours": 0}})

    assert (policy.looks, policy.burn_in_hours) == (24, 0)


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"alhpa": 0.05}, ["alhpa", "unknown key", "did you mean 'alpha'?"]),
        ({"waves": []}, ["waves", "belongs to a plan"]),
        ({"guardrails": []}, ["guardrails", "empty"]),
        ({"guardrails": [{"metric": "fault"}]}, ["guardrails[0].metric", "'faults'"]),
        ({"guardrails": [{"metric": "faults", "margin": 2}]}, ["[0].margin", "'margin_ratio'"]),
        ({"guardrails": [{"metric": "faults", "margin_ratio": 1}]}, ["margin_ratio", "above 1"]),
        ({"guardrails": [{}]}, ["guardrails[0]", "'metric'"]),
        ({"alpha": 0}, ["alpha", "not above 0"]),
        ({"alpha": "0.05"}, ["alpha", '"0.05"', "number"]),
        ({"looks": True}, ["looks", "true"]),
        ({"bad_rows": "ignore"}, ["bad_rows", '"report"']),
        ({"extension": 0.5}, ["extension", "0.5"]),
        ({"columns": {"machines": {"armm": "x"}}}, ["columns.machines.armm", "'arm'"]),
        ({"columns": {"machine": {}}}, ["columns.machine", "'machines'"]),
        ({"arms": {"canary": ["a"], "control": ["a"]}}, ["arms", "canary and control at once"]),
        ({"looks": 3, "window": {"looks": 4}}, ["window.looks", "contradicts"]),
        (
            {"guardrails": [{"metric": "throughput", "margin": 0.005}]},
            ["margin", "0.005", "tolerance 0.01"],
        ),
        ({"guardrails": [{"metric": "faults"}] * 2}, ["called 'faults'", "name"]),
        (
            {"guardrails": [{"metric": "faults"}], "weights": {"faults": 0}},
            ["weights", "add up to 0"],
        ),
        ({"covariates": {"thruput": "x"}}, ["thruput"]),
    ],
)
def test_a_wrong_policy_is_refused_by_place_and_value(document, words):
    reasons = "\n".join(refused(document))

    assert [word for word in words if word not in reasons] == []


def test_all_mistakes_are_named_at_once():
    reasons = refused({"alhpa": 1, "looks": 0, "bad_rows": "no"})

    assert len(reasons) == 3


@pytest.mark.parametrize(
    "wave", [{"share": 0.5, "count": 3}, {"window_hours": 2}, {"count": 3, "rest": True}]
)
def test_a_wave_has_exactly_one_size(wave):
    with pytest.raises(PolicyRefused, match="exactly one of count, share, growth, rest"):
        plan_from({"waves": [wave]})


def test_a_case_field_in_a_plan_is_named_as_such():
    with pytest.raises(PolicyRefused, match="belongs to a case"):
        plan_from({"bad_rows": "report"})


# --- files ---------------------------------------------------------------------------------

DOCUMENT = {
    "window": {"start": "2026-01-01T00:00:00Z", "looks": 12},
    "arms": {"canary": ["new"], "control": ["old"]},
    "guardrails": [{"metric": "faults", "signatures": ["DBE"], "required": True}],
}
TOML = """\
[window]
start = 2026-01-01T00:00:00Z
looks = 12
[arms]
canary = ["new"]
control = ["old"]
[[guardrails]]
metric = "faults"
signatures = ["DBE"]
required = true
"""
YAML = """\
window: {start: 2026-01-01T00:00:00Z, looks: 12}
arms: {canary: [new], control: [old]}
guardrails:
  - {metric: faults, signatures: [DBE], required: true}
"""


def test_json_toml_and_yaml_mean_the_same(tmp_path):
    texts = {"json": json.dumps(DOCUMENT), "toml": TOML, "yaml": YAML, "yml": YAML}
    for suffix, text in texts.items():
        (tmp_path / f"policy.{suffix}").write_text(text)

    read = {suffix: load_policy(tmp_path / f"policy.{suffix}") for suffix in texts}

    policies = {suffix: policy_from(document) for suffix, document in read.items()}
    assert set(map(repr, policies.values())) == {repr(policy_from(DOCUMENT))}
    assert {d["window"]["start"].replace("+00:00", "Z") for d in read.values()} == {
        "2026-01-01T00:00:00Z"
    }


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.json", '{"alpha": NaN}', "NaN is not a number"),
        ("p.json", '{"alpha": 0.1, "alpha": 0.2}', "'alpha' stands there 2 times"),
        ("p.json", "[]", r"holds \[\]; accepted: one object"),
        ("p.json", "{", "not valid JSON"),
        ("p.json", "", "not valid JSON"),
        ("p.toml", "alpha = inf", "inf is not a finite number"),
        ("p.yaml", "alpha: .nan", "nan is not a finite number"),
        ("p.yaml", "alpha: 0.1\nalpha: 0.2", "'alpha' stands there 2 times"),
        ("p.yaml", "alpha: [", "not valid YAML"),
        ("p.yaml", "? [a]\n: 1", r"the key \['a'\] is not text"),
        ("p.yaml", "? {a: b}\n: 1", "is not text"),
        ("p.yaml", "\n".join(["a: &a [x]", *MANY_TIMES_OVER]), "more than 100000 values"),
        ("p.json", f'{{"a": [{"1," * 100_000}1]}}', "more than 100000 values"),
        ("p.yaml", "a: !!python/object:os.system {}", "not valid YAML"),
        ("p.ini", "alpha=1", r"unknown kind of file '.ini'; accepted: .json"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_by_name(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)

    with pytest.raises(PolicyRefused, match=words) as caught:
        load_policy(tmp_path / name)

    assert name in str(caught.value)


def test_a_file_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "p.json").write_bytes('{"name": "ä"}'.encode("latin-1"))

    with pytest.raises(PolicyRefused, match="not UTF-8"):
        load_policy(tmp_path / "p.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(PolicyRefused, match="No such file"):
        load_policy(tmp_path / "none.json")


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_the_policies_in_the_documentation_are_accepted(path):
    assert policy_from(load_policy(path)).guardrails


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    st.sampled_from(sorted(properties(schema()["$defs"]["case"]))),
)
def test_any_value_in_any_field_is_accepted_or_refused_never_a_crash(value, field):
    try:
        policy_from({field: value})
    except PolicyRefused as refusal:
        assert refusal.reasons  # noqa: PT017 - either outcome is right, a crash is not


def test_a_plan_s_default_fault_families_are_the_shipped_hard_and_soft_signatures():
    table = Path(__file__).parents[2] / "fleet" / "shipped" / "signatures.json"
    shipped = json.loads(table.read_text(encoding="utf-8"))
    by_kind = {
        kind: {row["name"] for row in shipped if row["kind"] == kind} for kind in ("hard", "soft")
    }

    policy = policy_from({}, kind=Kind.PLAN)

    families = {g.name: set(g.signatures) for g in policy.guardrails if g.metric is Metric.FAULTS}
    assert families == {"faults:hard": by_kind["hard"], "faults:soft": by_kind["soft"]}
    assert {g.required for g in policy.guardrails if g.metric is Metric.FAULTS} == {None}


# --- numbers and texts beyond all reach ----------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"burn_in_hours": 10**400}, "burn_in_hours: a number of 1329 bits is beyond 87840"),
        ({"drain_timeout_minutes": 1e300}, "drain_timeout_minutes: 1e.300 is beyond 5.2704e.06"),
        ({"approval_days": 1e12}, "approval_days: 1000000000000.0 is beyond 3660"),
        ({"max_excess_faults": float("inf")}, "max_excess_faults: inf is beyond 1e.09"),
        ({"weights": {"faults": 10**400}}, "weights.faults: a number of 1329 bits is beyond 1e.09"),
        ({"look_minutes": 1e-12}, "look_minutes: 1e-12 is less than a second"),
        ({"name": "a\x00b"}, "name: .* holds what no database keeps as text"),
        ({"strata": ["rack", "\ud800"]}, r"strata\[1\]: .* holds what no database keeps as text"),
        ({"waves": [{"count": 1, "window_hours": 24}] * 101}, "waves: 101 of .* at most 100"),
        ({"guardrails": [{"metric": "install"}] * 51}, "guardrails: 51 of .* at most 50"),
        ({"windows": [{"start": "22:00", "duration_minutes": 240}] * 101}, "windows: 101 of"),
        ({"covariates": {f"metric {n}": "column" for n in range(21)}}, "covariates: 21 of"),
        ({"name": "a" * 1001}, "name: 1001 characters; accepted: at most 1000"),
    ],
)
def test_a_plan_is_refused_by_what_no_clock_and_no_database_can_hold(
    changes: dict[str, Any], reason: str
):
    with pytest.raises(PolicyRefused, match=reason):
        plan_from({"guardrails": [{"metric": "install"}], **changes})


def test_a_seed_may_be_larger_than_any_quantity():
    plan = plan_from({"guardrails": [{"metric": "install"}], "seed": 2**62 - 1})

    assert plan["seed"] == 2**62 - 1
