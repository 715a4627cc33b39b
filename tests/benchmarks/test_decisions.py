"""The benchmark itself: one wave through all judges, and what is made of many."""

from xml.etree import ElementTree

import pytest

from benchmarks import catalogue, judges, picture, swift
from benchmarks.cells import Cell
from benchmarks.decisions import (
    SHORT,
    SWIFT,
    Bench,
    Form,
    Result,
    beside_prototype,
    checks_of,
    disagreements,
    document,
    joined,
    judged,
    run,
    run_part,
)
from benchmarks.kept import Kept, Part
from benchmarks.statistics import Share, Tally
from benchmarks.waves import HOUR, draw_wave
from rollouts.analysis import judge
from rollouts.analysis.wave import Look

SMALL = Cell(size="8+32", ratio=5.0)


def tally_of(*, halted=5, blind=0, size=100):
    none = Share(0, size)
    return Tally(Share(halted, size), none, none, 10.0, 1.0, 20.0, None, 0.0, 0.0, blind)


def test_results_do_not_depend_on_how_replications_are_split():
    together = run_part(SMALL, 0, 2, 99)
    apart = [run_part(SMALL, 0, 1, 99), run_part(SMALL, 1, 2, 99)]

    assert joined([together]) == joined(apart)


DECISIVE = (
    SMALL,
    Cell(size="8+32", rate=1.0, ratio=3.0, history=True),
    Cell(policy="engine", size="8+32", rate=1.0, ratio=2.0, exposure="uneven"),
    Cell(policy="engine", size="8+32", rate=1.0, dropouts="canary", extension=True),
    Cell(policy="throughput", size="8+32", drop=0.04, dropouts="both"),
    Cell(policy="install", size="8+32", install=0.3),
)


@pytest.mark.parametrize("cell", DECISIVE, ids=lambda cell: cell.name)
def test_without_words_the_judge_decides_the_same(cell):
    for replication in range(1 if cell.policy == "engine" else 2):
        wave = draw_wave(cell, replication)

        without = swift.decided(wave, replication=replication, resamples=199)
        whole = judges.coalmine(wave, replication=replication, resamples=199)

        assert (without.halt, without.widen) == (whole.halt, whole.widen)


def test_a_disagreement_of_the_two_fails_the_benchmark():
    entry = catalogue.Entry(Cell(), catalogue.Role.SHOWN)

    checks = checks_of([Result(entry, {"coalmine": tally_of()}, 1.0, disagreements=1)])

    assert not all(check.is_met for check in checks)


def test_the_two_are_compared_wave_by_wave():
    parts = [
        Part({"coalmine": [3, None]}, {"coalmine": [None, 18]}, {}, {}, 0.0),
        Part({SWIFT: [3, None]}, {SWIFT: [None, 36]}, {}, {}, 0.0),
        Part({SWIFT: [1]}, {SWIFT: [None]}, {}, {}, 0.0),
    ]

    assert disagreements(parts) == 1


def test_power_is_compared_with_the_prototypes_rule_wave_by_wave():
    parts = [
        Part({SWIFT: [3, None, 5, None, 7]}, {SWIFT: [None] * 5}, {}, {}, 0.0),
        Part({"prototype": [9, None, None, 4]}, {"prototype": [None] * 4}, {}, {}, 0.0),
    ]

    assert beside_prototype(parts) == (1, 1)
    assert beside_prototype(parts[:1]) is None


def test_fewer_halts_than_the_prototypes_rule_fail_the_benchmark():
    entry = catalogue.Entry(SMALL, catalogue.Role.POWER, 0.05)

    met, failed = (
        checks_of([Result(entry, {SWIFT: tally_of()}, 1.0, paired=paired)])
        for paired in ((6, 8), (2, 12))
    )

    assert all(check.is_met for check in met)
    assert [c.name for c in failed if not c.is_met] == [
        f"power beside the prototype's rule: {SMALL.name}"
    ]


def test_the_prototypes_rule_halts_a_wave_that_fails_five_times_as_often():
    cell = Cell(size="8+32", rate=1.0, ratio=5.0)
    wave = draw_wave(cell, 0)

    found = judges.prototype(wave, replication=0, resamples=199)

    assert found.halt is not None
    assert judges.prototype(draw_wave(cell.with_(ratio=1.0), 0), replication=0, resamples=199) == (
        judges.Outcome(None)
    )


def test_every_peer_judges_the_very_same_wave():
    _, found = judged(SMALL, 0, 99, Bench.PEERS)

    assert {"coalmine", *found} == set(picture.NAMES)


@pytest.mark.parametrize("policy", ["faults", "throughput", "install", "engine", "telemetry"])
def test_peers_are_asked_where_one_has_a_word(policy):
    cell = Cell(policy=policy, size="8+32")

    found = judges.judge_peers(draw_wave(cell, 0), replication=0, resamples=99)

    assert bool(found) == judges.has_peers(cell)


def test_a_peer_without_an_answer_ships_at_the_end():
    wave = draw_wave(Cell(size="8+32", rate=0.005), 0)

    found = judges.judge_peers(wave, replication=0, resamples=99)

    assert found["growthbook_5000"] == judges.Outcome(None, 72)


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path):
    kept = Kept(tmp_path)
    chosen = [(catalogue.Entry(SMALL, catalogue.Role.SHOWN), 4)]
    # Two waves each at least: the error of one is nan, which equals nothing, not even itself.
    form = Form(whole=2, peers=2, resamples=99, engine_resamples=99)
    first = run(chosen, form=form, processes=1, kept=kept)

    again = run(chosen, form=form, processes=1, kept=kept, until=0.0)

    assert again == first
    assert first[0].tallies[SWIFT].halted.size == 4
    assert first[0].tallies["kayenta"].halted.size == 2


def test_out_of_time_nothing_new_is_started(tmp_path):
    chosen = [(catalogue.Entry(SMALL, catalogue.Role.SHOWN), 4)]
    form = Form(whole=1, peers=2, resamples=99, engine_resamples=99)

    found = run(chosen, form=form, processes=1, kept=Kept(None), until=0.0)

    assert found[0].tallies == {}


def test_a_widening_with_missing_data_fails_the_benchmark():
    entry = catalogue.Entry(Cell(), catalogue.Role.SHOWN)

    met = checks_of([Result(entry, {"coalmine": tally_of()}, 1.0)])
    failed = checks_of([Result(entry, {"coalmine": tally_of(blind=1)}, 1.0)])

    assert all(c.is_met for c in met)
    assert [c.name for c in failed if not c.is_met] == ["never a widening with missing data"]


def test_a_metric_that_the_judge_cannot_judge_fails_the_benchmark():
    entry = catalogue.Entry(Cell(policy="engine"), catalogue.Role.NULL)

    checks = checks_of([Result(entry, {}, 0.0, missing=("telemetry",))])

    assert not checks[0].is_met


def test_no_two_cells_share_a_name():
    names = [entry.cell.name for entry in catalogue.ENTRIES]

    assert len(set(names)) == len(names)


def test_the_short_form_has_null_margin_and_power_cells():
    roles = {entry.role for entry, _ in catalogue.entries(is_full=False)}

    assert roles >= {catalogue.Role.NULL, catalogue.Role.MARGIN, catalogue.Role.POWER}


def test_the_picture_is_well_formed_and_names_every_judge():
    parts = [run_part(SMALL, 0, 2, 99, bench) for bench in (Bench.SWIFT, Bench.PEERS)]
    results = [
        Result(catalogue.Entry(SMALL, role, 0.5), joined(parts), 1.0)
        for role in (catalogue.Role.NULL, catalogue.Role.POWER)
    ]
    stored = document(results, checks_of(results), command="test", form=SHORT)

    drawn = picture.draw(stored)

    ElementTree.fromstring(drawn)
    assert all(name in drawn for name in ("Coalmine", "Kayenta", "MaxSPRT"))


@pytest.mark.slow
@pytest.mark.statistical
def test_looks_on_the_way_cost_drops_of_throughput_next_to_nothing():
    # What a Brownian motion loses of an even chance is nine points.
    cell, waves = Cell(policy="throughput", size="8+32", drop=0.02), 150
    halted = {1: 0, 16: 0}
    for replication in range(50_000, 50_000 + waves):
        wave = draw_wave(cell, replication)
        policy = judges.policy_for(cell, resamples=499, seed=replication)
        for number in halted:
            looks = [
                Look(k, k * cell.hours * HOUR / number, k / number) for k in range(1, number + 1)
            ]
            evaluations, _ = judge.evaluate(
                wave.samples,
                policy,
                judges.plan_of(wave, policy),
                looks=looks,
                state=judge.initial_state(wave.samples, policy),
            )
            halted[number] += evaluations[-1].guardrails[0].crossed

    assert 0.4 < halted[1] / waves < 0.7
    assert (halted[1] - halted[16]) / waves < 0.05
