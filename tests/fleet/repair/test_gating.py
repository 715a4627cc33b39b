"""The gate's table, the rules of checks, and what a plan has to hold."""

import pytest

from fleet.errors import IllegalGateMove
from fleet.models import Gate, GatePlan, RepairKind
from fleet.repair import gating
from fleet.repair.gating import MOVES, Move, Status, judge, next_status, plan_problems
from fleet.shipped import gate_plans

PAIRS = [(status, move) for status in Status for move in Move]


@pytest.mark.parametrize(("status", "move"), PAIRS, ids=[f"{s}-{m}" for s, m in PAIRS])
def test_every_pair_of_status_and_move_is_in_the_table_or_refused(status, move):
    if (status, move) in MOVES:
        assert next_status(status, move) is MOVES[status, move]
    else:
        with pytest.raises(IllegalGateMove, match="possible: "):
            next_status(status, move)


def test_only_a_review_leads_to_passed():
    assert [pair for pair, new in MOVES.items() if new is Status.PASSED] == [
        (Status.AWAITING_REVIEW, Move.ACCEPT)
    ]


def test_every_unfinished_status_has_a_way_to_pass_to_fail_and_to_be_void():
    for status in gating.UNFINISHED:
        ends = {new for (old, _), new in MOVES.items() if old is status}
        assert Status.VOID in ends
        assert len(ends) > 1


def test_the_table_knows_the_statuses_of_the_rows():
    assert set(Gate.Status.values) == {status.value for status in Status}


@pytest.mark.parametrize(
    ("rule", "value", "is_passed"),
    [
        ({"kind": ">=", "value": 400}, 400, True),
        ({"kind": ">=", "value": 400}, 399.9, False),
        ({"kind": "<=", "value": 85}, 85, True),
        ({"kind": "<=", "value": 85}, 85.1, False),
        ({"kind": "equals", "value": 0}, 0, True),
        ({"kind": "equals", "value": 0}, 1, False),
        ({"kind": "between", "low": 2, "high": 4}, 4, True),
        ({"kind": "between", "low": 2, "high": 4}, 4.5, False),
        ({"kind": "equals", "value": 0}, None, False),
    ],
)
def test_absolute_rules(rule, value, is_passed):
    assert judge(value, rule=rule, unit="").is_passed is is_passed


NORM = [100.0] * 8 + [90.0, 110.0]


@pytest.mark.parametrize(
    ("rule", "value", "is_passed"),
    [
        ({"side": "at_least", "share": 0.05}, 95, True),
        ({"side": "at_least", "share": 0.05}, 94, False),
        ({"side": "at_least", "share": 0.05}, 500, True),
        ({"side": "at_most", "share": 0.05}, 106, False),
        ({"side": "within", "share": 0.05}, 106, False),
        ({"side": "within", "share": 0.05}, 96, True),
    ],
)
def test_rules_by_the_fleets_median(rule, value, is_passed):
    assert judge(value, rule={"kind": "norm", **rule}, unit="", norm=NORM).is_passed is is_passed


def test_a_rule_by_the_median_absolute_deviation():
    # The median is 102, the absolute deviations are 2, 1, 0, 1, 2: their median is 1, times 1.4826.
    norm = [100.0, 101.0, 102.0, 103.0, 104.0]
    rule = {"kind": "norm", "side": "at_most", "mads": 2, "fewest": 5}

    assert judge(104.96, rule=rule, unit="", norm=norm).is_passed
    assert not judge(104.97, rule=rule, unit="", norm=norm).is_passed


def test_too_few_results_fall_back_to_the_absolute_rule_and_say_so():
    rule = {
        "kind": "norm",
        "side": "at_least",
        "share": 0.05,
        "fallback": {"kind": ">=", "value": 400},
    }

    judged = judge(401, rule=rule, unit="GB/s", norm=[9.0])

    assert judged.is_passed
    assert judged.threshold == ">= 400 GB/s"
    assert "1 result of the fleet, 10 are needed" in judged.note


def test_neither_norm_nor_absolute_rule_fails_closed():
    judged = judge(1e9, rule={"kind": "norm", "side": "at_least", "share": 0.05}, unit="")

    assert (judged.is_passed, judged.threshold) == (False, "not decidable")


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", gate_plans.shipped(), ids=lambda p: f"{p['kind']}-{p['level']}")
def test_every_shipped_plan_holds(plan):
    assert plan_problems(plan["checks"]) == []
    assert all(
        gating.rule_in_words(one["rule"], unit=one.get("unit", "")) for one in plan["checks"]
    )


def test_every_kind_of_repair_has_a_plan_and_a_longer_one():
    shipped = {(plan["kind"], plan["level"]): plan for plan in gate_plans.shipped()}

    assert set(shipped) == {(kind, level) for kind in RepairKind.values for level in (0, 1)}
    for kind in RepairKind.values:
        usual, longer = shipped[kind, 0], shipped[kind, 1]
        assert longer["observation_hours"] > usual["observation_hours"]
        assert longer["review"] != "automatic"


# Field practice (observation before release, reviewer), by kind of repair.
@pytest.mark.parametrize(
    ("kind", "hours", "review"),
    [
        ("gpu_reset", 0, "automatic"),
        ("node_reboot", 4, "automatic"),
        ("gpu_swap", 24, "human"),
        ("network_swap", 24, "human"),
        ("host_part_swap", 24, "human"),
        ("thermal", 24, "human"),
        ("firmware_change", 24, "rollout"),
        ("numerical", 72, "reliability"),
        ("no_fault_found", 72, "reliability"),
    ],
)
def test_observation_and_reviewer_by_kind(kind, hours, review):
    plan = next(p for p in gate_plans.shipped() if (p["kind"], p["level"]) == (kind, 0))

    assert (plan["observation_hours"], plan["review"]) == (hours, review)


@pytest.mark.django_db
def test_the_shipped_plans_are_in_the_table_after_the_migrations():
    stored = set(GatePlan.objects.values_list("kind", "level", "version"))

    assert stored == {(plan["kind"], plan["level"], 1) for plan in gate_plans.shipped()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rule": {"kind": ">="}}, "a finite number is needed"),
        ({"rule": {"kind": ">=", "value": float("nan")}}, "a finite number is needed"),
        ({"rule": {"kind": "between", "low": 3, "high": 2}}, "low 3 is above high 2"),
        ({"rule": {"kind": "norm", "side": "at_least"}}, "either share or mads"),
        ({"rule": {"kind": "norm", "side": "above", "share": 0.1}}, "side is 'above'"),
        ({"rule": {"kind": "about"}}, "kind is 'about'; accepted: "),
        ({"rule": []}, "an object with a kind is needed"),
        ({"stage": "later"}, "stage: 'later'; accepted: "),
        ({"name": "a\u202eb"}, "a text of at most 60 is needed"),
        ({"colour": "red"}, "colour: unknown; accepted: "),
    ],
)
def test_a_check_that_cannot_hold_is_refused_with_what_would(change, said):
    good = [dict(one) for one in gate_plans.shipped()[0]["checks"]]
    good[-1] = {**good[-1], **change}

    assert any(said in problem for problem in plan_problems(good))


def test_stages_out_of_order_are_refused():
    checks = list(gate_plans.shipped()[0]["checks"])

    assert plan_problems(checks[::-1]) == [
        "checks: in the order of their stages: firmware, focused, representative, observation"
    ]
