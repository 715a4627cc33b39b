"""The benchmark itself: one wave through all judges, and what is made of many."""

from xml.etree import ElementTree

from benchmarks import catalogue, judges, picture
from benchmarks.cells import Cell
from benchmarks.decisions import Result, checks_of, document, joined, run_part
from benchmarks.statistics import Share, Tally
from benchmarks.waves import draw_wave

SMALL = Cell(size="8+32", ratio=5.0)


def tally_of(*, halted=5, blind=0, size=100):
    none = Share(0, size)
    return Tally(Share(halted, size), none, none, 10.0, 1.0, 20.0, None, 0.0, 0.0, blind)


def test_results_do_not_depend_on_how_replications_are_split():
    together = run_part(SMALL, 0, 2, 99)
    apart = [run_part(SMALL, 0, 1, 99), run_part(SMALL, 1, 2, 99)]

    assert joined([together]) == joined(apart)


def test_the_halting_test_alone_halts_when_the_whole_judge_does():
    for replication in range(3):
        wave = draw_wave(SMALL, replication)

        alone = judges.judge_halts(wave, replication=replication, resamples=99)
        whole = judges.judge_alone(wave, replication=replication, resamples=99)

        assert alone[judges.HALTS_ALONE].halt == whole["coalmine"].halt


def test_a_disagreement_of_the_halting_test_fails_the_benchmark():
    entry = catalogue.Entry(Cell(), catalogue.Role.SHOWN)

    checks = checks_of([Result(entry, {"coalmine": tally_of()}, 1.0, disagreements=1)])

    assert not all(check.is_met for check in checks)


def test_every_peer_judges_the_very_same_wave():
    found = judges.judge_all(draw_wave(SMALL, 0), replication=0, resamples=99)

    assert set(found) == set(picture.NAMES)


def test_a_peer_without_an_answer_ships_at_the_end():
    found = judges.judge_all(
        draw_wave(Cell(size="8+32", rate=0.005), 0), replication=0, resamples=99
    )

    assert found["growthbook_5000"] == judges.Outcome(None, 72)


def test_the_ceiling_knows_the_machines_and_is_a_test_of_the_same_level():
    # A lemon among the canaries is no news to it: expected episode-days are taken off.
    wave = draw_wave(Cell(), 0)
    expected = judges._expected_episode_days(wave.expected)

    assert (expected[:, -1] <= 3).all()
    assert (expected[:, 1:] >= expected[:, :-1] - 1e-12).all()


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
    part = run_part(SMALL, 0, 2, 99)
    results = [
        Result(catalogue.Entry(SMALL, role, 0.5), joined([part]), 1.0)
        for role in (catalogue.Role.NULL, catalogue.Role.POWER)
    ]
    stored = document(results, checks_of(results), command="test", resamples=99)

    drawn = picture.draw(stored)

    ElementTree.fromstring(drawn)
    assert all(name in drawn for name in ("Coalmine", "Kayenta", "MaxSPRT"))
