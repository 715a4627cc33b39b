"""Re-assignments are pinned, stratified, uniform, and summed exactly."""

import hashlib
import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from rollouts.analysis import labels as module
from rollouts.analysis.errors import (
    AnalysisError,
    InvalidSample,
    ScoreOverflow,
    UnitMismatch,
)
from rollouts.analysis.labels import Design, Labels, splitmix64

PINNED = ["f00fffe0", "1317ff6a", "4d0ff57c", "903ff673"]


def design_of(*strata):
    """Strata of (units, canaries), canaries first."""
    codes = np.repeat(np.arange(len(strata)), [n for n, _ in strata])
    arms = np.concatenate([np.arange(n) < c for n, c in strata])
    return Design(codes, arms)


def test_generator_gives_the_published_splitmix64_stream():
    # First outputs for seed 1234567, as listed with the reference C code (Vigna)
    # and by Rosetta Code "Pseudo-random numbers/Splitmix64".
    out = splitmix64(np.arange(5, dtype=np.uint64), key=1234567)

    assert out.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_draws_are_pinned_to_literal_values():
    # A change here changes every stored verdict: it needs a new version of the key.
    labels = Labels.draw(design_of((12, 4), (20, 15)), seed=7, resamples=3)

    assert [row.tobytes().hex() for row in labels.packed] == PINNED


def test_drawing_follows_the_written_recipe_of_floyd():
    # The same draw in plain Python integers.
    n, c, seed = 40, 9, 11
    labels = Labels.draw(design_of((n, c)), seed=seed, resamples=5)
    key = int.from_bytes(hashlib.sha256(f"labels 1 {seed}".encode()).digest()[:8], "big")

    for path in range(1, 6):
        chosen = set()
        for pick in range(c):
            counter = np.array([path * c + pick], dtype=np.uint64)
            word = int(splitmix64(counter, key=key)[0])
            top = n - c + pick
            position = ((word >> 32) * (top + 1)) >> 32
            chosen.add(top if position in chosen else position)
        assert set(np.flatnonzero(labels.rows(path, path + 1)[0])) == chosen


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(
        st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 2**70),
    shuffle=st.randoms(use_true_random=False),
)
def test_every_path_has_as_many_canaries_per_stratum_as_observed(shape, seed, shuffle):
    plain = design_of(*shape)
    order = list(range(plain.units))
    shuffle.shuffle(order)
    design = Design(plain.stratum[order] * 7 - 3, plain.is_canary[order])

    labels = Labels.draw(design, seed=seed, resamples=20)

    rows = labels.rows(0, labels.paths)
    assert (rows[0] == design.is_canary).all()
    for code in np.unique(design.stratum):
        inside = design.stratum == code
        assert (rows[:, inside].sum(axis=1) == design.is_canary[inside].sum()).all()


def test_all_assignments_stand_once_where_they_are_few():
    design = Design(np.array([1, 0, 1, 0, 1, 0]), np.array([0, 1, 1, 0, 0, 0], dtype=bool))

    labels = Labels.draw(design, seed=1, resamples=50)

    rows = [tuple(row) for row in labels.rows(0, labels.paths)]
    assert labels.is_enumerated
    assert len(set(rows)) == len(rows) == design.assignments == 9
    assert rows[0] == tuple(design.is_canary)


def test_enumeration_of_one_control_among_many_canaries_is_complete():
    design = design_of((300, 299))

    labels = Labels.draw(design, seed=1, resamples=50)

    assert labels.paths == 300
    assert (labels.rows(0, 300).sum(axis=1) == 299).all()
    assert len({row.tobytes() for row in labels.packed}) == 300


def test_each_assignment_is_equally_likely(monkeypatch):
    monkeypatch.setattr(module, "ENUMERATION_LIMIT", 1)
    labels = Labels.draw(design_of((5, 2), (4, 3)), seed=3, resamples=40_000)

    counts = Counter(row.tobytes() for row in labels.packed[1:])

    assert len(counts) == math.comb(5, 2) * 4
    assert chisquare(list(counts.values())).pvalue > 1e-4


def test_chunks_do_not_change_the_draw(monkeypatch):
    design = design_of((50, 10), (50, 10), (30, 20))
    whole = Labels.draw(design, seed=5, resamples=200)

    monkeypatch.setattr(module, "CHUNK_BYTES", 130 * 7)
    chunked = Labels.draw(design, seed=5, resamples=200)

    assert (whole.packed == chunked.packed).all()


def test_more_resamples_extend_the_same_paths():
    design = design_of((50, 10))

    few = Labels.draw(design, seed=5, resamples=20)
    many = Labels.draw(design, seed=5, resamples=200)

    assert (many.packed[:21] == few.packed).all()


def test_observed_arms_do_not_influence_the_other_paths():
    design = design_of((50, 10))
    other = Design(design.stratum, design.is_canary[::-1])

    first = Labels.draw(design, seed=5, resamples=20)
    second = Labels.draw(other, seed=5, resamples=20)

    assert (first.packed[1:] == second.packed[1:]).all()


def test_renaming_strata_in_the_same_order_changes_nothing():
    design = design_of((50, 10), (40, 7))
    renamed = Design(design.stratum * 1000 - 5, design.is_canary)

    assert (
        Labels.draw(design, seed=5, resamples=20).packed
        == Labels.draw(renamed, seed=5, resamples=20).packed
    ).all()


def test_seed_and_design_name_the_draw():
    design = design_of((50, 10))

    assert design.digest == design_of((50, 10)).digest
    assert design.digest != design_of((50, 11)).digest
    assert (
        Labels.draw(design, seed=1, resamples=9).packed[1:]
        != Labels.draw(design, seed=2, resamples=9).packed[1:]
    ).any()


def test_sums_are_those_of_python_integers(monkeypatch):
    monkeypatch.setattr(module, "SLAB_UNITS", 16)
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 16 * 17)
    labels = Labels.draw(design_of((40, 11), (20, 5)), seed=2, resamples=100)
    columns = np.random.default_rng(0).integers(-(2**44), 2**44, (60, 3))

    sums = labels.sums(columns)

    rows = labels.rows(0, labels.paths).astype(bool)
    assert sums.dtype == np.int64
    assert sums.tolist() == [[sum(columns[row, j].tolist()) for j in range(3)] for row in rows]
    assert (labels.sums(columns[:, 1]) == sums[:, 1]).all()


def test_what_has_not_changed_since_the_last_call_is_not_summed_again(monkeypatch):
    labels = Labels.draw(design_of((40, 11), (20, 5)), seed=2, resamples=100)
    first, second, third = np.random.default_rng(0).integers(-50, 50, (3, 60))
    before = labels.sums(np.stack([first, second], axis=1))
    summed = []
    products = Labels._products
    monkeypatch.setattr(
        Labels, "_products", lambda self, s: summed.append(s.shape[1]) or products(self, s)
    )

    after = labels.sums(np.stack([third, second, third, first], axis=1))

    assert summed == [1]
    assert (after[:, [3, 1]] == before).all()
    assert (after[:, 0] == labels.sums(third)).all()
    assert (after[:, 2] == after[:, 0]).all()


def test_sums_are_not_to_be_written_over():
    labels = Labels.draw(design_of((4, 1)), seed=2, resamples=5)

    with pytest.raises(ValueError, match="read-only"):
        labels.sums(np.arange(4))[0] = 7


def test_sums_that_float64_cannot_hold_are_refused():
    labels = Labels.draw(design_of((4, 1)), seed=2, resamples=5)
    limit = np.array([2**52, -(2**52) + 1, 0, 0])

    assert labels.sums(limit)[0] == 2**52
    with pytest.raises(ScoreOverflow, match=r"2\*\*53"):
        labels.sums(limit - np.array([0, 1, 0, 0]))


def test_sums_refuse_fractions_and_wrong_lengths():
    labels = Labels.draw(design_of((4, 1)), seed=2, resamples=5)

    with pytest.raises(AnalysisError, match="float64"):
        labels.sums(np.ones(4))
    with pytest.raises(UnitMismatch, match="4 units"):
        labels.sums(np.ones(5, dtype=np.int64))


def test_a_design_needs_one_arm_per_unit():
    with pytest.raises(UnitMismatch):
        Design(np.zeros(3, dtype=int), np.zeros(2, dtype=bool))
    with pytest.raises(InvalidSample):
        Design(np.zeros(0, dtype=int), np.zeros(0, dtype=bool))
    with pytest.raises(AnalysisError, match="got 0"):
        Labels.draw(design_of((4, 1)), seed=1, resamples=0)


def test_a_design_keeps_its_own_copy_of_the_arms():
    arms = np.arange(6) < 2
    design = Design(np.zeros(6, dtype=int), arms)

    arms[:] = True

    assert design.sizes == {0: (6, 2)}


def test_a_design_counts_its_assignments():
    assert design_of((16, 4)).assignments == 1820
    assert design_of((8, 2), (16, 4)).assignments == 28 * 1820


@pytest.mark.slow
def test_a_recording_of_fifteen_thousand_machines_stays_within_its_time():
    rng = np.random.default_rng(0)
    design = Design(rng.integers(0, 40, 15_156), rng.random(15_156) < 0.5)
    columns = rng.integers(-1000, 1000, (15_156, 150))

    start = time.perf_counter()
    labels = Labels.draw(design, seed=1, resamples=19_999)
    drawn = time.perf_counter()
    labels.sums(columns)
    summed = time.perf_counter()

    assert labels.packed.nbytes < 40_000_000
    assert drawn - start < 12
    assert summed - drawn < 10
