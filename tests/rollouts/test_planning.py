"""Sizes, strata, the random order, batches, refusals and limits."""

import math
import random
import time
from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollouts import planning
from rollouts.planning import Candidate, Caps, Domain, Pace, UnitInput, WaveSpec

METRICS = ("faults", "throughput", "install")


def shares(*values: float) -> list[WaveSpec]:
    return [WaveSpec(share=value) for value in values]


def units(number: int, **fields: str) -> list[UnitInput]:
    site = fields.get("site", "a")
    return [UnitInput(f"{site}{index:05}", {"site": site, **fields}) for index in range(number)]


def by_stratum(drawn: planning.Assignments) -> dict[str, list[planning.Assigned]]:
    strata: dict[str, list[planning.Assigned]] = {}
    for row in drawn.rows:
        strata.setdefault(row.stratum, []).append(row)
    return strata


# --- waves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("population", "share", "size"), [(37, 0.01, 1), (100, 0.005, 1), (30, 0.1, 3), (29, 0.1, 3)]
)
def test_a_small_share_is_at_least_one_unit_and_an_exact_share_is_exact(population, share, size):
    # 30 x 0.1 is 3.0000000000000004 in binary; rounded up it would be 4.
    assert planning.wave_sizes(population, shares(share), hold_back=0.0) == [size]


def test_shares_that_add_to_one_add_to_the_population():
    sizes = planning.wave_sizes(10, shares(0.33, 0.33, 0.34), hold_back=0.0)

    assert sizes == [4, 3, 3]


def test_a_wave_that_rounding_left_empty_is_shown_as_empty():
    assert planning.wave_sizes(3, shares(0.01, 0.09, 0.90), hold_back=0.0) == [1, 0, 2]


def test_shares_are_of_the_population_without_the_hold_back_and_growth_of_the_wave_before():
    specs = [WaveSpec(share=0.01), WaveSpec(growth=5), WaveSpec(growth=2.5), WaveSpec(is_rest=True)]

    sizes = planning.wave_sizes(2000, specs, hold_back=0.1)

    assert sizes == [18, 90, 225, 1467]
    assert sum(sizes) == 2000 - 200


def test_the_default_plan_has_the_sizes_of_its_description():
    waves = [{"count": 20}, {"count": 100}, {"count": 400}, {"rest": True}]

    specs = [WaveSpec.of(wave) for wave in waves]

    assert planning.wave_sizes(2000, specs, hold_back=0.1) == [20, 100, 400, 1280]
    assert planning.wave_sizes(300, specs, hold_back=0.1) == [20, 100, 150, 0]


@given(
    population=st.integers(1, 2000),
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
)
def test_any_shares_of_any_population_add_up_and_stay_within_one_of_their_quota(
    population, weights
):
    # Shares as an operator writes them: two decimals of a percent, the last takes what is left.
    cuts = [round(weight / sum(weights), 4) for weight in weights[:-1]]
    last = 1 - sum(map(planning.exact, cuts))
    assume(last > 0)
    wanted = [*cuts, float(last)]

    sizes = planning.wave_sizes(population, shares(*wanted), hold_back=0.0)

    assert sum(sizes) == population
    assert all(
        abs(size - population * planning.exact(share)) < 1
        for size, share in zip(sizes, wanted, strict=True)
    )


@given(
    population=st.integers(1, 2000),
    specs=st.lists(
        st.one_of(
            st.integers(1, 500).map(lambda count: WaveSpec(count=count)),
            st.floats(0.001, 1.0).map(lambda share: WaveSpec(share=share)),
            st.floats(0.1, 10.0).map(lambda growth: WaveSpec(growth=growth)),
            st.just(WaveSpec(is_rest=True)),
        ),
        min_size=1,
        max_size=6,
    ),
    hold_back=st.floats(0, 0.99),
)
def test_no_plan_takes_more_than_there_are_or_touches_the_hold_back(population, specs, hold_back):
    held = planning.hold_back_size(population, hold_back=hold_back)

    sizes = planning.wave_sizes(population, specs, hold_back=hold_back)

    assert min(sizes) >= 0
    assert sum(sizes) <= population - held
    assert held >= (1 if hold_back else 0)


@given(
    total=st.integers(0, 3000),
    weights=st.lists(st.integers(0, 500), min_size=1, max_size=20),
    least=st.integers(0, 2),
)
def test_allocation_is_exact_and_proportional(total, weights, least):
    parts = planning.allocate(total, weights=weights)

    whole = sum(weights)
    assert sum(parts) == (total if whole else 0)
    assert all(
        abs(part - Fraction(total * weight, whole)) < 1
        for part, weight in zip(parts, weights, strict=True)
        if whole
    )
    if total <= whole:
        assert all(part <= weight for part, weight in zip(parts, weights, strict=True))

    raised = planning.allocate(total, weights=weights, least=least)

    assert sum(raised) == sum(parts)
    positive = [part for part, weight in zip(raised, weights, strict=True) if weight]
    if total >= least * len(positive):
        assert all(part >= least for part in positive)


@pytest.mark.parametrize("fields", [{}, {"count": 3, "share": 0.1}, {"growth": 2, "is_rest": True}])
def test_a_wave_is_given_in_exactly_one_way(fields):
    with pytest.raises(ValueError, match="a count, a share, a growth or the rest"):
        WaveSpec(**fields)


# --- the random order ------------------------------------------------------------------------


def test_the_order_is_pinned_and_independent_of_the_order_of_the_input():
    population = units(12)
    shuffled = random.Random(3).sample(population, len(population))

    drawn = planning.draw_order(population, sizes=[3, 4], seed=7, salt="r", strata=["site"])
    again = planning.draw_order(shuffled, sizes=[3, 4], seed=7, salt="r", strata=["site"])

    assert drawn == again
    # sha256(b"assignment 1\0" b"7\0r\0" + name), sorted: the same on every machine.
    assert [int(row.unit[1:]) for row in drawn.rows] == [8, 4, 1, 10, 6, 9, 5, 2, 11, 0, 7, 3]
    assert [row.planned_wave for row in drawn.rows] == [1] * 3 + [2] * 4 + [3] * 5
    assert [row.is_hold_back for row in drawn.rows] == [False] * 7 + [True] * 5


def test_another_rollout_with_the_same_seed_has_another_order():
    orders = {
        tuple(
            row.unit
            for row in planning.draw_order(
                units(12), sizes=[3], seed=seed, salt=salt, strata=["site"]
            ).rows
        )
        for seed, salt in [(7, "r"), (7, "s"), (8, "r")]
    }

    assert len(orders) == 3


@pytest.mark.statistical
def test_every_order_of_a_stratum_is_equally_likely():
    # 24 orders of 4 units over 4,800 seeds: chi-square with 23 degrees of freedom, whose
    # 99.9 % quantile is 49.7.
    seen = Counter(
        tuple(
            row.unit
            for row in planning.draw_order(
                units(4), sizes=[1], seed=seed, salt="", strata=["site"]
            ).rows
        )
        for seed in range(4800)
    )

    expected = 4800 / math.factorial(4)
    names = [unit.name for unit in units(4)]
    chi = sum((seen[order] - expected) ** 2 / expected for order in permutations(names))
    assert chi < 49.7


def test_units_are_treated_in_proportion_per_stratum():
    population = [*units(600, site="a"), *units(300, site="b"), *units(100, site="c")]

    drawn = planning.draw_order(population, sizes=[20, 100, 780], seed=1, salt="r", strata=["site"])

    assert drawn.merges == ()
    assert drawn.planned == {
        "a": (12, 60, 468, 60),
        "b": (6, 30, 234, 30),
        "c": (2, 10, 78, 10),
    }
    assert drawn.counts(1) == {"a": (12, 588), "b": (6, 294), "c": (2, 98)}
    for rows in by_stratum(drawn).values():
        assert [row.position for row in rows] == list(range(len(rows)))
        assert [row.planned_wave for row in rows] == sorted(row.planned_wave for row in rows)


def test_strata_without_a_canary_are_merged_from_the_last_key_on_and_reported():
    population = [
        UnitInput(f"{platform}{job}{index:03}", {"platform": platform, "job": job})
        for platform, job, number in [("h", "j1", 90), ("h", "j2", 6), ("g", "j1", 104)]
        for index in range(number)
    ]

    drawn = planning.draw_order(
        population, sizes=[10, 150], seed=1, salt="r", strata=["platform", "job"]
    )

    assert set(drawn.planned) == {"g/j1", "h/j1+j2"}
    [merge] = drawn.merges
    assert str(merge) == "h/j1, h/j2 became h/j1+j2: 0 canaries in wave 1"


def test_strata_with_less_than_four_controls_in_the_last_wave_are_merged():
    population = [*units(100, site="a"), *units(20, site="b")]

    drawn = planning.draw_order(population, sizes=[20, 88], seed=1, salt="r", strata=["site"])

    assert list(drawn.planned) == ["a+b"]
    assert drawn.merges[0].because == "2 controls in wave 2"


def test_an_empty_wave_asks_nothing_of_a_stratum():
    population = [*units(50, site="a"), *units(50, site="b")]

    drawn = planning.draw_order(population, sizes=[10, 0, 60], seed=1, salt="r", strata=["site"])

    assert drawn.merges == ()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_after_merging_every_stratum_can_be_compared_or_there_is_only_one(data):
    cells = data.draw(
        st.dictionaries(
            st.tuples(st.sampled_from("ab"), st.sampled_from("cde"), st.sampled_from("fg+/")),
            st.integers(1, 60),
            min_size=1,
        )
    )
    population = [
        UnitInput("".join(cell) + str(index), dict(zip("xyz", cell, strict=True)))
        for cell, number in cells.items()
        for index in range(number)
    ]
    first = data.draw(st.integers(0, len(population)))
    second = data.draw(st.integers(0, len(population) - first))
    sizes = [first, second]

    drawn = planning.draw_order(population, sizes=sizes, seed=1, salt="", strata=["x", "y", "z"])

    assert sorted(row.unit for row in drawn.rows) == sorted(unit.name for unit in population)
    for wave, size in enumerate(sizes, 1):
        assert sum(row.planned_wave == wave for row in drawn.rows) == size
        if size and len(drawn.planned) > 1:
            assert all(c >= 1 and k >= 4 for c, k in drawn.counts(wave).values())
    assert len(drawn.planned) == len(by_stratum(drawn))


def test_labels_of_different_cells_differ_even_if_their_values_hold_the_separators():
    cells = [("a/b", "c"), ("a", "b/c"), ("a+b", ""), ("a", "-")]
    population = [
        UnitInput(f"{index}-{number}", {"x": x, "y": y})
        for index, (x, y) in enumerate(cells)
        for number in range(40)
    ]

    drawn = planning.draw_order(population, sizes=[40], seed=1, salt="", strata=["x", "y"])

    assert len(drawn.planned) == 4


def test_a_label_of_many_values_fits_its_column():
    population = [UnitInput(f"n{index}", {"job": f"job-{index:06}"}) for index in range(400)]

    drawn = planning.draw_order(population, sizes=[2], seed=1, salt="", strata=["job"])

    assert max(map(len, drawn.planned)) <= 300
    assert sum(len(merge.strata) for merge in drawn.merges) == 400
    assert " strata became job-000000+job-000001+" in str(drawn.merges[0])


def test_without_strata_there_is_one_stratum_of_all():
    drawn = planning.draw_order(units(10), sizes=[2], seed=1, salt="", strata=[])

    assert drawn.planned == {"all": (2, 8)}


def test_a_placement_unit_carries_its_machines():
    population = [UnitInput(f"job{n}", {}, machines=(f"m{n}a", f"m{n}b")) for n in range(6)]

    drawn = planning.draw_order(population, sizes=[1], seed=1, salt="", strata=[])

    assert sorted(name for row in drawn.rows for name in row.machines)[:3] == ["m0a", "m0b", "m1a"]


@pytest.mark.parametrize(
    ("population", "sizes", "strata", "message"),
    [
        (units(3) + units(1), [1], [], "'a00000' was given twice"),
        (units(3), [4], [], r"waves of \[4\] do not fit 3 units"),
        (units(3), [1], ["rack"], "'a00000' has no 'rack'; it has site"),
    ],
)
def test_a_population_that_cannot_be_drawn_is_named(population, sizes, strata, message):
    with pytest.raises(ValueError, match=message):
        planning.draw_order(population, sizes=sizes, seed=1, salt="", strata=strata)


def test_a_hundred_thousand_machines_in_thousands_of_small_jobs_are_drawn_in_seconds():
    population = [
        UnitInput(
            f"n{index:06}", {"platform": "h", "job": f"j{index // 8}", "site": str(index % 3)}
        )
        for index in range(100_000)
    ]
    started = time.process_time()

    drawn = planning.draw_order(
        population,
        sizes=[1000, 9000, 80_000],
        seed=1,
        salt="r",
        strata=["platform", "job", "site"],
    )

    assert time.process_time() - started < 15
    assert all(c >= 1 and k >= 4 for wave in (1, 2, 3) for c, k in drawn.counts(wave).values())


def test_recent_fault_classes_do_not_take_a_negative_count():
    with pytest.raises(ValueError, match="-1"):
        planning.recent_fault_class(-1)


# --- install batches -------------------------------------------------------------------------


def test_both_arms_are_dealt_into_batches_in_proportion():
    canaries = {"a": [f"ac{n}" for n in range(12)], "b": [f"bc{n}" for n in range(6)]}
    controls = {"a": [f"ak{n}" for n in range(120)], "b": [f"bk{n}" for n in range(60)]}

    deal = planning.deal_blocks(canaries, controls, batches=3)

    cells = Counter((unit[:2], block) for unit, block in deal.block.items())
    assert deal.notes == ()
    assert cells == {
        **{("ac", block): 4 for block in (1, 2, 3)},
        **{("ak", block): 40 for block in (1, 2, 3)},
        **{("bc", block): 2 for block in (1, 2, 3)},
        **{("bk", block): 20 for block in (1, 2, 3)},
    }


def test_units_are_dealt_in_their_random_order():
    canaries, controls = {"a": list("zyxw")}, {"a": list("hgfedcba")}

    deal = planning.deal_blocks(canaries, controls, batches=2)

    assert [deal.block[unit] for unit in "zyxw"] == [1, 1, 2, 2]
    assert [deal.block[unit] for unit in "hgfedcba"] == [1, 1, 1, 1, 2, 2, 2, 2]


def test_blocks_that_a_stratum_cannot_fill_with_both_arms_are_merged_and_reported():
    deal = planning.deal_blocks({"a": list("wxyz")}, {"a": ["k"]}, batches=4)

    assert set(deal.block.values()) == {1}
    assert deal.notes == ("a: blocks merged into 1 of 4",)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 200)), min_size=1, max_size=8),
    batches=st.integers(1, 6),
)
def test_every_unit_is_dealt_once_and_every_cell_has_both_arms_where_the_stratum_has(
    sizes, batches
):
    canaries = {f"s{i}": [f"c{i}-{n}" for n in range(c)] for i, (c, _) in enumerate(sizes)}
    controls = {f"s{i}": [f"k{i}-{n}" for n in range(k)] for i, (_, k) in enumerate(sizes)}

    deal = planning.deal_blocks(canaries, controls, batches=batches)

    assert len(deal.block) == sum(c + k for c, k in sizes)
    assert set(deal.block.values()) <= set(range(1, batches + 1))
    for index, (c, k) in enumerate(sizes):
        treated = {deal.block[unit] for unit in canaries[f"s{index}"]}
        untreated = {deal.block[unit] for unit in controls[f"s{index}"]}
        if c and k:
            assert treated == untreated
            assert len(treated) == min(batches, c, k)


@given(canaries=st.lists(st.integers(1, 9), min_size=1, max_size=30), batches=st.integers(1, 5))
def test_batches_are_of_even_size(canaries, batches):
    cells = planning.deal_counts([(c, 50) for c in canaries], batches=batches)

    load = Counter()
    for dealt in cells:
        load.update({block: c for block, (c, _) in dealt.items()})
    assert max(load.values()) - min(load[block] for block in range(1, batches + 1)) <= max(
        1, *(-(-c // batches) for c in canaries)
    )


def test_without_a_batch_size_a_wave_is_one_batch():
    assert planning.batch_count(400, batch_size=None) == 1
    assert planning.batch_count(401, batch_size=100) == 5
    assert planning.batch_count(0, batch_size=100) == 1


def test_no_batch_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one batch: got 0"):
        planning.deal_counts([(1, 1)], batches=0)


# --- what a design can decide, and refusals --------------------------------------------------


def test_an_exact_test_needs_enough_assignments():
    # 4 of 16 jobs: C(16, 4) = 1820; 2 of 8: C(8, 2) = 28.
    assert planning.can_reach([(4, 12)], alpha=Fraction(1, 1820))
    assert not planning.can_reach([(4, 12)], alpha=Fraction(1, 1821))
    assert not planning.can_reach([(2, 6)], alpha=0.03)
    assert planning.can_reach([(2, 6), (2, 6)], alpha=Fraction(1, 28 * 28))


def test_huge_designs_are_counted_in_logarithms():
    cells = [(500, 5000)] * 40

    assert planning.log_assignments(cells) > 10_000
    assert planning.can_reach(cells, alpha=1e-12)


PLAN = {
    "waves": [{"share": 0.1, "window_hours": 72}, {"rest": True, "window_hours": 72}],
    "burn_in_hours": 2.0,
    "min_exposure_hours": 24.0,
    "extension": 0.5,
    "look_minutes": 60.0,
    "caps": {"max_in_flight": 50, "per_rack": None},
    "batch_size": None,
    "guardrails": [{"metric": "faults"}],
    "resamples": 19_999,
}


def refused(number: int = 200, *, sizes=None, alphas=None, hold_back=0.1, **changes) -> list[str]:
    plan = PLAN | changes
    specs = [WaveSpec.of(wave) for wave in plan["waves"]]
    sizes = sizes or planning.wave_sizes(number, specs, hold_back=hold_back)
    drawn = planning.draw_order(units(number), sizes=sizes, seed=1, salt="", strata=["site"])
    return planning.refuse(
        plan, assignments=drawn, alphas=alphas or {}, metrics=METRICS, most_enumerated=20_000
    )


def test_a_sound_plan_is_not_refused():
    assert refused(alphas={"faults": 0.003}) == []


def test_a_plan_that_draws_too_few_re_assignments_for_a_level_is_refused():
    levels = {"faults": Fraction(1, 1000), "novel": Fraction(1, 1001), "telemetry": 0.01}

    [reason] = refused(alphas=levels, resamples=999)

    assert reason == (
        "resamples: 999 re-assignments allow no p-value below 0.001, but 0.000999 is needed to "
        "find harm in novel; draw at least 1000"
    )
    assert refused(alphas=levels, resamples=1000) == []


def test_where_every_assignment_is_gone_through_none_is_drawn():
    # C(16, 2) = 120 and C(14, 3) = 364.
    assert refused(16, sizes=[2, 3], alphas={"faults": 0.01}, resamples=19) == []


def test_a_selector_that_matches_nobody_is_refused():
    assert refused(0) == ["the selector matches no eligible machine"]


def test_a_population_that_is_all_hold_back_is_refused():
    assert refused(1) == ["every wave is empty: all 1 units are held back"]


def test_a_wave_that_leaves_no_control_is_refused():
    [reason] = refused(hold_back=0.0)

    assert reason == "wave 2 leaves no control: its 180 units are all that remain; hold some back"


def test_a_wave_too_small_for_its_error_budget_is_refused():
    [reason] = refused(16, sizes=[2, 10], alphas={"throughput": 0.001, "faults": 0.05})

    # C(16, 2) = 120 for the first wave, C(14, 10) = 1001 for the second.
    assert reason.startswith("wave 1 is too small to find harm in throughput")
    assert "no p-value below 0.00833, but 0.001 is needed" in reason


def test_batches_shrink_what_a_design_can_decide():
    drawn = planning.draw_order(units(24), sizes=[4], seed=1, salt="", strata=["site"])

    whole = planning.cells_of(drawn, wave=1, batch_size=None)
    split = planning.cells_of(drawn, wave=1, batch_size=1)

    assert whole == [(4, 20)]
    assert split == [(1, 5)] * 4
    assert planning.log_assignments(split) < planning.log_assignments(whole)


def test_everything_that_is_wrong_is_said_at_once():
    reasons = refused(
        waves=[
            {"growth": 2.0, "window_hours": 2},
            {"share": 0.7, "window_hours": 12},
            {"share": 0.6, "window_hours": 0.5},
            {"rest": True, "window_hours": 72},
            {"count": 5, "window_hours": 72},
        ],
        sizes=[0, 100, 100, 0, 0],
        caps={"max_in_flight": 0, "per_rack": 2},
        guardrails=[{"metric": "faults"}, {"metric": "latency"}],
    )

    assert reasons == [
        "the waves' shares add to 130 %; at most 100 % is accepted",
        "wave 1 has no wave before it to grow from; give it a count or a share",
        "wave 4 takes the rest, so nothing is left for wave 5",
        "wave 3 leaves no control: its 100 units are all that remain; hold some back",
        "wave 1: a window of 2 h is not longer than the burn-in of 2 h",
        "wave 2: a window of 12 h, 18 h if extended, never reaches the least observation of 24 h",
        "wave 3: a window of 0.5 h is not longer than the burn-in of 2 h",
        "wave 3: a window of 0.5 h is over before the first look after 60 min",
        "caps.max_in_flight of 0 lets no machine start; more than 0 or null is accepted",
        "unknown metric 'latency'; accepted: faults, install, throughput",
    ]


def test_a_window_of_just_the_least_observation_is_refused_where_blocks_follow_each_other():
    waves = [{"count": 20, "window_hours": 24}, {"count": 100, "window_hours": 72}]
    plan = {"waves": waves, "extension": 0, "min_exposure_hours": 24.0}

    [reason] = refused(batch_size=10, **plan)

    assert reason.startswith("wave 1: its 20 canaries are installed in 2 blocks of at most 10")
    assert "never observed for 24 h" in reason
    assert refused(batch_size=20, **plan) == []
    assert refused(batch_size=10, **plan | {"extension": 0.5}) == []


def test_a_window_in_which_no_attempt_can_end_is_refused():
    reasons = refused(
        windows=[
            {"start": "22:00", "duration_minutes": 119},
            {"start": "22:00", "duration_minutes": 120},
        ],
        install_timeout_minutes=60,
        return_timeout_minutes=30,
    )

    words = (
        "are shorter than the 120 min that an attempt may take from its install to its read-back"
    )
    assert reasons == [f"windows[0]: 119 min {words}"]


def test_machines_that_activate_as_one_are_drawn_as_one():
    machines = [(f"r{n // 4}", f"n{n}") for n in range(20)]

    by_machine = planning.split_domains(machines, domain="rack", unit="machine")
    by_rack = planning.split_domains(
        [(rack, rack) for rack, _ in machines], domain="rack", unit="rack"
    )

    assert by_machine == [
        (
            "the bundle activates a whole rack, and unit machine divides rack r0, rack r1, "
            "rack r2 and 2 more; draw by rack instead"
        )
    ]
    assert by_rack == []


# --- the signed plan -------------------------------------------------------------------------


def test_the_digest_names_document_and_members_and_nothing_else():
    drawn = planning.draw_order(units(10), sizes=[2], seed=1, salt="", strata=["site"])
    other = planning.draw_order(units(10), sizes=[2], seed=2, salt="", strata=["site"])

    digest = planning.plan_digest({"a": 1, "b": [2]}, drawn.rows)

    assert planning.plan_digest({"b": [2], "a": 1}, reversed(drawn.rows)) == digest
    assert planning.plan_digest({"a": 2, "b": [2]}, drawn.rows) != digest
    assert planning.plan_digest({"a": 1, "b": [2]}, other.rows) != digest
    assert planning.plan_digest({"a": 1, "b": [2]}, drawn.rows[1:]) != digest


def test_a_preview_of_a_thousand_machines_has_the_digest_of_what_is_saved():
    population = [*units(600, site="a"), *units(400, site="b")]
    specs = [
        WaveSpec(share=0.01),
        WaveSpec(share=0.09),
        WaveSpec(share=0.3),
        WaveSpec(is_rest=True),
    ]

    def digest(machines: list[UnitInput]) -> str:
        sizes = planning.wave_sizes(len(machines), specs, hold_back=0.1)
        drawn = planning.draw_order(machines, sizes=sizes, seed=5, salt="r", strata=["site"])
        return planning.plan_digest({"caps": {"per_rack": 2}}, drawn.rows)

    assert digest(population) == digest(population[::-1])
    assert digest(population) != digest(population[:-1])


def test_a_changed_fleet_is_described():
    before, after = [f"n{n}" for n in range(12)], ["n0", "x"]

    assert planning.fleet_change(before, before) == ""
    assert planning.fleet_change(before, after) == (
        "fleet changed: 1 added (x), 11 left (n1, n10, n11, n2, n3, n4, n5, n6, n7, n8 and 1 more)"
    )


# --- blast radius ----------------------------------------------------------------------------


def candidates(number: int, *, rack: str = "r1", pool: str = "p1") -> list[Candidate]:
    return [Candidate(f"{rack}-{n}", {"rack": rack, "pool": pool}) for n in range(number)]


def test_who_is_first_in_the_queue_starts_first_within_the_rack_limit():
    queue = [*candidates(3, rack="r1"), *candidates(3, rack="r2")]

    picked = planning.startable(
        queue, in_flight=candidates(1, rack="r1"), caps=Caps(per_domain={"rack": 2})
    )

    assert picked.start == ("r1-0", "r2-0", "r2-1")
    assert picked.waiting == {
        "r1-1": "2 of at most 2 out of service in rack r1",
        "r1-2": "2 of at most 2 out of service in rack r1",
        "r2-2": "2 of at most 2 out of service in rack r2",
    }
    assert picked.blocked == ()


def test_the_strictest_limit_wins():
    picked = planning.startable(
        candidates(9),
        in_flight=[],
        caps=Caps(max_in_flight=4, share_per_domain={"pool": 0.5}, per_domain={"rack": 5}),
        domains={("pool", "p1"): Domain(size=20, unavailable=7)},
    )

    assert len(picked.start) == 3
    assert set(picked.waiting.values()) == {"10 of at most 10 out of service in pool p1 of 20"}


def test_a_share_that_allows_nobody_blocks_and_says_so():
    caps = Caps.of({"max_unavailable_share": 0.1, "max_in_flight": None, "per_rack": None})

    picked = planning.startable(
        candidates(2), in_flight=[], caps=caps, domains={("pool", "p1"): Domain(5, 0)}
    )

    assert picked.start == ()
    assert picked.blocked == (
        "blocked: limit allows 0 of 5 in pool p1, raise the limit or set a count",
    )


def test_a_pool_of_unknown_size_starts_nobody():
    picked = planning.startable(
        candidates(1), in_flight=[], caps=Caps(share_per_domain={"pool": 0.1}), domains={}
    )

    assert picked.start == ()
    assert picked.waiting == {"r1-0": "the size of pool p1 is not known"}


def test_machines_without_a_known_rack_share_one():
    queue = [Candidate("n1", {}), Candidate("n2", {"rack": ""})]

    picked = planning.startable(queue, in_flight=[], caps=Caps.of({"per_rack": 1}))

    assert picked.start == ("n1",)
    assert picked.waiting == {"n2": "1 of at most 1 out of service in no known rack"}


def test_an_unhealthy_machine_waits_and_takes_no_place():
    picked = planning.startable(
        candidates(2), in_flight=[], caps=Caps(max_in_flight=1), unhealthy={"r1-0": "cordoned"}
    )

    assert picked.start == ("r1-1",)
    assert picked.waiting == {"r1-0": "cordoned"}


def test_machines_out_of_service_for_other_reasons_consume_a_count():
    picked = planning.startable(
        candidates(3),
        in_flight=[],
        caps=Caps(per_domain={"rack": 2}),
        domains={("rack", "r1"): Domain(size=8, unavailable=1)},
    )

    assert picked.start == ("r1-0",)
    assert picked.waiting["r1-1"] == "2 of at most 2 out of service in rack r1"


def test_a_share_of_any_domain_is_rounded_down_and_blocks_in_words():
    caps = Caps.of({"per_power_domain_share": 0.25})
    machine = Candidate("n1", {"power_domain": "p7"})

    def picked(size: int) -> planning.Startable:
        domains = {("power_domain", "p7"): Domain(size, 0)}
        return planning.startable([machine], in_flight=[], caps=caps, domains=domains)

    assert picked(4).start == ("n1",)
    assert picked(3).blocked == (
        "blocked: limit allows 0 of 3 in power domain p7, raise the limit or set a count",
    )


def test_the_largest_job_stays_placeable():
    caps = Caps.of({"largest_job": 6})
    asked = {"in_flight": [], "caps": caps}

    room = planning.startable(candidates(4), domains={("pool", "p1"): Domain(9, 1)}, **asked)
    small = planning.startable(candidates(1), domains={("pool", "p1"): Domain(6, 0)}, **asked)

    assert len(room.start) == 2
    assert room.waiting["r1-2"] == "6 machines of pool p1 can work, and a job of 6 has to fit"
    assert small.blocked == (
        "blocked: pool p1 of 6 could not place its largest job of 6 with 1 out of service",
    )


def test_the_largest_job_may_be_the_one_that_runs_now():
    caps = Caps.of({"largest_job": "present"})
    domains = {("pool", "p1"): Domain(10, 0, largest_job=8)}

    picked = planning.startable(candidates(4), in_flight=[], caps=caps, domains=domains)

    assert len(picked.start) == 2


def test_a_group_starts_whole_or_not_at_all():
    groups = [
        Candidate(f"{rack}-{n}", {"rack": rack}, group=rack)
        for rack in ("a", "b")
        for n in range(3)
    ]

    def picked(**asked: object) -> planning.Startable:
        return planning.startable(groups, in_flight=[], **{"caps": Caps(), **asked})

    assert picked(caps=Caps(max_in_flight=5)).start == ("a-0", "a-1", "a-2")
    assert picked(unhealthy={"a-1": "cordoned"}).start == ("b-0", "b-1", "b-2")
    assert picked(caps=Caps(per_domain={"rack": 2})).blocked == (
        "blocked: 3 machines start together, and limit allows 2 in rack a",
        "blocked: 3 machines start together, and limit allows 2 in rack b",
    )


def test_the_pace_holds_starts_and_says_why():
    pace = Pace(limit=3, in_flight=2, because="1 more failure would not stop it yet")

    picked = planning.startable(candidates(3), in_flight=[], caps=Caps(), pace=pace)

    assert picked.start == ("r1-0",)
    assert picked.waiting["r1-1"] == (
        "3 of at most 3 in flight: 1 more failure would not stop it yet"
    )


def test_a_group_larger_than_the_pace_starts_alone():
    rack = [Candidate(f"a-{n}", group="a") for n in range(4)]

    def started(in_flight: int) -> int:
        pace = Pace(limit=3, in_flight=in_flight, because="")
        picked = planning.startable(rack, in_flight=[], caps=Caps(), pace=pace)
        return len(picked.start)

    assert [started(0), started(1)] == [4, 0]


@given(
    size=st.integers(1, 2000),
    out=st.integers(0, 2000),
    share=st.floats(0.001, 1.0),
    count=st.integers(1, 50),
    job=st.integers(0, 60),
    number=st.integers(1, 80),
)
@settings(max_examples=200)
def test_every_limit_holds_for_any_pool(size, out, share, count, job, number):
    out = min(out, size)
    queue = [Candidate(f"q{i}", {"pool": "p", "site": "s"}) for i in range(number)]
    caps = Caps(None, {"site": count}, {"pool": share}, largest_job=job)
    domains = {("pool", "p"): Domain(size, out), ("site", "s"): Domain(size, out)}

    picked = planning.startable(queue, in_flight=[], caps=caps, domains=domains)

    started = len(picked.start)
    assert set(picked.start) | set(picked.waiting) == {candidate.name for candidate in queue}
    if started:
        assert out + started <= size * planning.exact(share)
        assert out + started <= count
        assert not job or size - out - started >= job
    if picked.waiting:
        # Nobody waits while one more would fit.
        assert (
            out + started + 1 > size * planning.exact(share)
            or out + started + 1 > count
            or size - out - started - 1 < job
        )
    assert (("pool", "p") in set(planning.full_domains(caps, domains))) == (
        out + 1 > size * planning.exact(share) or (job > 0 and size - out - 1 < job)
    )


@given(
    racks=st.lists(st.integers(0, 4), max_size=60),
    flying=st.lists(st.integers(0, 4), max_size=10),
    most=st.integers(1, 12),
    per_rack=st.integers(1, 4),
    share=st.floats(0.01, 1.0),
    size=st.integers(10, 100),
)
def test_no_limit_is_ever_broken(racks, flying, most, per_rack, share, size):
    queue = [Candidate(f"q{i}", {"rack": str(r), "pool": "p"}) for i, r in enumerate(racks)]
    busy = [Candidate(f"f{i}", {"rack": str(r), "pool": "p"}) for i, r in enumerate(flying)]

    picked = planning.startable(
        queue,
        in_flight=busy,
        caps=Caps(most, {"rack": per_rack}, {"pool": share}),
        domains={("pool", "p"): Domain(size, len(busy))},
    )

    started = [candidate for candidate in queue if candidate.name in picked.start]
    assert len(started) + len(picked.waiting) == len(queue)
    if started:
        assert len(started) + len(busy) <= most
        assert len(started) + len(busy) <= size * share
    for rack, count in Counter(c.domains["rack"] for c in started).items():
        assert count + flying.count(int(rack)) <= per_rack
