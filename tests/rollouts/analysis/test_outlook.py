"""What a wave can decide: the chances of the planner, inverted for people."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

from rollouts.analysis import power
from rollouts.analysis.errors import InvalidLevel, InvalidSample
from rollouts.analysis.outlook import (
    HALT_POWERS,
    Chances,
    DropChances,
    FaultChances,
    InstallChances,
    LostWorkChances,
    NovelChances,
    RecoveryChances,
    Schedule,
    ShareChances,
    outlook,
    smallest,
)
from rollouts.analysis.policy import Guardrail
from tests.rollouts.analysis import worlds
from tests.rollouts.analysis.worlds import Drawn

CHECKPOINTS = [(0.25, 2.498), (0.5, 2.202), (0.75, 1.996), (1.0, 1.827)]
BUSY = FaultChances(power.FaultRate(0.2, dispersion=0.5))
QUIET = FaultChances(power.FaultRate(0.02, dispersion=0.5))


def wave(canaries: int = 64, controls: int = 256, **changes: object) -> Schedule:
    fields = {"days": 3.0, "halt_level": 0.05, "checkpoints": CHECKPOINTS, **changes}
    return Schedule(canaries, controls, **fields)


def test_what_a_wave_halts_on_has_the_power_that_is_named():
    found = outlook(BUSY, wave(), margin=2.0, halts=True)

    for effect, chance in zip(found.halts_on, (0.5, 0.8, 0.9), strict=True):
        reached = BUSY.halts(effect, canaries=64, controls=256, days=3.0, level=0.05)
        assert reached == pytest.approx(chance, abs=0.02)


def test_what_a_wave_rules_out_is_shown_in_four_of_five():
    found = outlook(BUSY, wave(), margin=2.0, halts=True)

    shown = BUSY.rules_out(found.rules_out, canaries=64, controls=256, days=3.0, bound=1.827)
    assert shown == pytest.approx(0.8, abs=1e-3)


def test_a_larger_wave_halts_on_less_and_rules_out_more():
    small, large = (
        outlook(BUSY, wave(canaries, 4 * canaries), margin=2.0, halts=True)
        for canaries in (16, 256)
    )

    assert all(a > b for a, b in zip(small.halts_on, large.halts_on, strict=True))
    assert small.rules_out > large.rules_out


def test_a_drop_by_hand():
    # Error .02 sqrt(1/64 + 1/256); at level .05 an even chance lies 1.645 errors beyond 1 %.
    error = 0.02 * math.sqrt(1 / 64 + 1 / 256)

    found = outlook(DropChances(0.02, tolerated=0.01), wave(), margin=0.02, halts=True)

    assert found.halts_on[0] == pytest.approx(0.01 + norm.isf(0.05) * error, rel=1e-4)
    assert found.rules_out == pytest.approx((1.827 + norm.ppf(0.8)) * error, rel=1e-4)


def test_a_widening_is_expected_at_the_first_checkpoint_with_an_even_chance():
    found = outlook(BUSY, wave(), margin=2.0, halts=True)

    chances = [
        BUSY.rules_out(2.0, canaries=64, controls=256, days=3.0 * f, bound=bound)
        for f, bound in CHECKPOINTS
    ]
    assert chances[0] < 0.5 <= chances[1]
    assert found.hours_to_widen == 36


def test_nothing_widens_before_the_least_exposure():
    drop = DropChances(0.001)

    early, late = (
        outlook(drop, wave(least_days=days), margin=0.02, halts=True) for days in (0.0, 1.0)
    )

    assert (early.hours_to_widen, late.hours_to_widen) == (18, 36)


def test_a_wave_that_cannot_decide_says_how_many_more_hours_it_needs():
    found = outlook(QUIET, wave(), margin=2.0, halts=True)

    assert found.hours_to_widen is None
    days = 3.0 + found.more_hours / 24
    shown = QUIET.rules_out(2.0, canaries=64, controls=256, days=days, bound=1.827)
    assert shown == pytest.approx(0.5, abs=1e-3)


def test_a_wave_that_cannot_decide_says_how_many_more_canaries_it_needs():
    silent = ShareChances(0.02)

    found = outlook(silent, wave(), margin=0.05, halts=True)

    def chance(canaries):
        return silent.rules_out(
            0.05, canaries=canaries, controls=320 - canaries, days=3.0, bound=1.827
        )

    assert chance(64 + found.more_canaries) >= 0.5 > chance(64 + found.more_canaries - 1)
    assert found.more_hours is None  # a machine is silent or not, however long the window


def test_two_equal_waves_show_what_one_of_both_together_shows():
    # The proof of telemetry is over all waves: errors of 1 / e^2 + 1 / e^2 add.
    sizes = {"days": 3.0, "bound": 1.827}
    both = ShareChances(0.02, earlier=((40, 160),)).rules_out(
        0.05, canaries=40, controls=160, **sizes
    )

    together = ShareChances(0.02).rules_out(0.05, canaries=80, controls=320, **sizes)

    assert both == pytest.approx(together)


def test_earlier_waves_do_not_help_to_halt():
    sizes = {"canaries": 40, "controls": 160, "days": 3.0, "level": 0.01}

    assert ShareChances(0.02, earlier=((40, 160),)).halts(0.1, **sizes) == ShareChances(0.02).halts(
        0.1, **sizes
    )


def test_a_wave_that_decides_lacks_nothing():
    found = outlook(BUSY, wave(), margin=2.0, halts=True)

    assert (found.more_hours, found.more_canaries) == (None, None)


def test_an_infinite_margin_cannot_be_decided():
    found = outlook(BUSY, wave(), margin=math.inf, halts=True)

    assert (found.chance, found.hours_to_widen) == (0, None)
    assert (found.more_hours, found.more_canaries) == (None, None)


def test_a_guardrail_that_only_reports_halts_on_nothing():
    assert outlook(BUSY, wave(), margin=2.0, halts=False).halts_on == ()


def test_recovery_at_thirty_eight_interruptions_rules_out_half_as_long_again():
    found = outlook(RecoveryChances(0.2), wave(), margin=1.5, halts=True)

    assert found.chance > 0.8
    assert found.rules_out < 1.5


def test_no_interruption_before_decides_nothing():
    found = outlook(RecoveryChances(0.0), wave(), margin=1.5, halts=True)

    assert found.halts_on == (None, None, None)
    assert (found.rules_out, found.hours_to_widen) == (None, None)


def test_installs_of_eight_halt_on_two_failures():
    # ln E = 3.75 at 2 of 8 and p0 = 1 %, 1/alpha = 20; one failure gives less.
    chances = InstallChances(baseline=0.0, limit_base=0.01, beta=0.05)

    found = outlook(chances, wave(8, 32), margin=0.04, halts=True)

    assert binom.sf(1, 8, 0.01 + found.halts_on[0]) == pytest.approx(0.5, abs=1e-4)


def test_installs_of_the_waves_before_count_for_the_proof():
    alone = InstallChances(baseline=0.0, limit_base=0.01, beta=0.05)
    later = InstallChances(baseline=0.0, limit_base=0.01, beta=0.05, earlier=60)

    first, second = (outlook(c, wave(8, 32), margin=0.04, halts=True) for c in (alone, later))

    assert (first.chance, second.chance) == (0, 1)


def test_a_novel_signature_halts_from_two_canaries_on():
    # 2 of 2 among 64 of 320 has p = .039, within .05.
    found = outlook(NovelChances(), wave(), margin=None, halts=True)

    assert binom.sf(1, 64, found.halts_on[0]) == pytest.approx(0.5, abs=1e-4)
    assert (found.rules_out, found.chance) == (None, None)


def test_a_level_of_zero_halts_on_nothing():
    for chances in (BUSY, DropChances(0.01), RecoveryChances(0.5), NovelChances()):
        found = outlook(chances, wave(halt_level=0.0), margin=None, halts=True)
        assert found.halts_on == (None, None, None)


def test_a_level_below_the_smallest_p_of_the_assignments_halts_on_nothing():
    # Of 999 re-assignments not one may cross at a level of less than .001.
    for level, halts in ((0.0009, False), (0.0011, True)):
        found = outlook(
            DropChances(0.02), wave(halt_level=level, least_p=1 / 1000), margin=0.02, halts=True
        )
        assert (found.halts_on != (None, None, None)) is halts


def test_the_first_passage_is_found_where_a_chance_falls_again():
    assert smallest(lambda x: 4 * x * (1 - x), target=0.75, low=0.0, high=1.0) == pytest.approx(
        0.25, abs=1e-4
    )


def test_impossible_schedules_are_refused():
    with pytest.raises(InvalidSample, match="both arms"):
        wave(0, 4)
    with pytest.raises(InvalidSample, match="0 checkpoints"):
        wave(checkpoints=[])
    with pytest.raises(InvalidLevel, match="halt level"):
        wave(halt_level=1.0)
    with pytest.raises(InvalidSample, match="between"):
        smallest(lambda x: x, target=0.5, low=1.0, high=1.0)


# --- what looks on the way cost ----------------------------------------------------------------


def test_looks_on_the_way_cost_recovery_times_nine_points_of_eighty():
    # One look at the end would find this ratio with 80 %: sigma .75, 38.4 and 153.6 interruptions.
    error = 0.75 * math.sqrt(1 / 38.4 + 1 / 153.6)
    ratio = math.exp(error * (norm.isf(0.05) + norm.ppf(0.8)))

    chance = RecoveryChances(0.2).halts(ratio, canaries=64, controls=256, days=3.0, level=0.05)

    assert chance == pytest.approx(0.71, abs=0.005)


def test_looks_on_the_way_cost_severe_paths_and_lost_work_something_and_the_level_nothing():
    sizes = {"canaries": 64, "controls": 256, "days": 3.0, "level": 0.05}
    lost = power.LostWork(mean=0.2, variance=0.14, within=0.12, days=3.0)
    arms = {"n_canary": 38, "n_control": 154, "level": 0.05}

    severe_at_the_end = power.share_halt_power(0.17, rise=0.2, **arms)
    lost_at_the_end = power.lost_work_halt_power(
        lost, n_canary=64, n_control=256, days=3.0, ratio=1.7, alpha=0.05
    )

    for chances, effect, at_the_end in (
        (ShareChances(0.17, 0.2), 0.2, severe_at_the_end),
        (LostWorkChances(lost), 1.7, lost_at_the_end),
    ):
        assert 0.05 < at_the_end - chances.halts(effect, **sizes) < 0.11
        assert chances.halts(chances.unchanged, **sizes) <= 0.0501


def test_what_machines_show_from_the_first_look_on_costs_nothing_to_look_at():
    sizes = {"canaries": 64, "controls": 256, "days": 3.0, "level": 0.05}
    error = 0.02 * math.sqrt(1 / 64 + 1 / 256)

    drop = DropChances(0.02).halts(error * (norm.isf(0.05) + norm.ppf(0.8)), **sizes)
    silent = ShareChances(0.02).halts(0.1, **sizes)

    assert drop == pytest.approx(0.8)
    assert silent == power.share_halt_power(0.02, n_canary=64, n_control=256, rise=0.1, level=0.05)


def lost_before(drawn: Drawn) -> power.LostWork:
    rows = replace(drawn, jobs=500).draw(9).recoveries
    assert rows is not None
    hours = np.minimum(rows.recovery_seconds / 3600, 8)
    roots = np.bincount(rows.machine, weights=np.sqrt(hours), minlength=20 * 500)
    return power.LostWork(roots.mean(), roots.var(), within=hours.sum() / roots.size, days=3.0)


RESTARTS = Drawn(jobs=16, rate_per_day=0.2, has_reports=False, has_recoveries=True)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("guardrail", "chances", "worse"),
    [
        (
            worlds.RECOVERY,
            lambda: RecoveryChances(0.2, sigma=0.7),
            lambda ratio: replace(RESTARTS, recovery_factor=ratio),
        ),
        (
            worlds.SEVERE,
            lambda: ShareChances(0.17, 0.2),
            lambda rise: replace(RESTARTS, severe_rise=rise),
        ),
        (
            worlds.LOST_WORK,
            # With lemons the planner is cautious: what it says 80 % of is found in 95 %.
            lambda: LostWorkChances(lost_before(replace(RESTARTS, lemons=0.0))),
            lambda ratio: replace(RESTARTS, lemons=0.0, rate_ratio=ratio),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Guardrail) else "",
)
def test_waves_halt_on_interruptions_as_often_as_the_planner_said(
    guardrail: Guardrail, chances: Callable[[], Chances], worse: Callable[[float], Drawn]
):
    waves = 100
    said = outlook(chances(), wave(), margin=None, halts=True)

    for seed, (chance, effect) in enumerate(zip(HALT_POWERS, said.halts_on, strict=True), start=1):
        assert effect is not None
        found = worlds.halted(worse(effect), guardrail, looks_each=16, waves=waves, seed=seed)
        error = math.sqrt(chance * (1 - chance) / waves)
        assert found == pytest.approx(chance, abs=2.5 * error)
