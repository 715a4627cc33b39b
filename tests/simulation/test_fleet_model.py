"""The virtual fleet's truth: regenerable, independent of firmware where it must be, and true."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.fleet_model import FleetModel, Spells
from simulation.parameters import Effect, Layout, Parameters, field_signatures
from tests.simulation.fleets import parameters, tripled

FOREVER = 1e9


def always(model: FleetModel, versions: list[dict[str, str]]) -> Spells:
    """Every machine in service for ever; machine i runs versions[i % len(versions)]."""
    rows = [(i, -FOREVER, FOREVER, -FOREVER, i % len(versions)) for i in range(len(model))]
    return Spells.build(rows, profiles=[model.profile(own) for own in versions])


def quiet(**changes) -> dict[str, float]:
    """Parameters without bursts, shocks, day and night and unlisted signatures."""
    return {
        "burst_mean": 0.0,
        "shocks_per_job_day": 0.0,
        "diurnal": 0.0,
        "novel_per_machine_day": 0.0,
        **changes,
    }


def events_of(model: FleetModel, spells: Spells, *, ticks: range) -> set[tuple]:
    return {
        (key, int(machine), round(float(seconds), 6), name)
        for tick in ticks
        for faults, _ in [model.happenings(tick, spells)]
        for key, machine, seconds, name in zip(
            faults.key, faults.machine, faults.seconds, faults.signature, strict=True
        )
    }


def test_the_same_seed_draws_the_same_events_with_the_same_keys():
    one, other = (FleetModel(7, parameters()) for _ in range(2))

    first = events_of(one, always(one, [{}]), ticks=range(24))
    again = events_of(other, always(other, [{}]), ticks=range(24))

    assert first
    assert first == again


def test_ticks_may_be_drawn_in_any_order():
    forwards, backwards = (FleetModel(7, parameters()) for _ in range(2))

    first = events_of(forwards, always(forwards, [{}]), ticks=range(12))
    again = events_of(backwards, always(backwards, [{}]), ticks=range(11, -1, -1))

    assert first == again


def test_another_seed_draws_other_events():
    one, other = FleetModel(7, parameters()), FleetModel(8, parameters())

    assert events_of(one, always(one, [{}]), ticks=range(6)) != events_of(
        other, always(other, [{}]), ticks=range(6)
    )


def test_keys_are_unique():
    model = FleetModel(7, parameters())
    spells = always(model, [{}])

    keys = [key for tick in range(48) for key in model.happenings(tick, spells)[0].key]

    assert len(keys) == len(set(keys))


def test_the_firmware_of_one_machine_leaves_the_others_events_alone():
    model = FleetModel(7, parameters(effects=(tripled(),)))
    rows = [(i, -FOREVER, FOREVER, -FOREVER, int(i == 3)) for i in range(len(model))]
    with_one = Spells.build(rows, profiles=[model.profile({}), model.profile({"bmc": "2.0"})])

    plain = events_of(model, always(model, [{}]), ticks=range(24))
    changed = events_of(model, with_one, ticks=range(24))

    assert {e for e in plain if e[1] != 3} == {e for e in changed if e[1] != 3}
    assert {e for e in plain if e[1] == 3} < {e for e in changed if e[1] == 3}


@pytest.mark.statistical
def test_the_rate_ratio_of_a_firmware_is_recovered_in_a_large_sample():
    law = parameters(400, effects=(Effect("bmc", "2.0", ratios={"xid.*": 3.0}),), **quiet())
    model = FleetModel(11, law)
    spells = always(model, [{}, {"bmc": "2.0"}])
    counts = np.zeros((2, 2))  # new firmware, family

    for tick in range(360):
        faults, _ = model.happenings(tick, spells)
        is_xid = np.array([name.startswith("xid.") for name in faults.signature])
        np.add.at(counts, (faults.machine % 2, is_xid.astype(int)), 1)

    exposure = [model.multiplier[0::2].sum(), model.multiplier[1::2].sum()]
    other, xid = (counts[1] / exposure[1]) / (counts[0] / exposure[0])
    # Given the multipliers the counts are Poisson: about 3,000 events or more in each cell.
    assert xid == pytest.approx(3.0, rel=0.08)
    assert other == pytest.approx(1.0, rel=0.08)


@pytest.mark.statistical
def test_the_fleet_has_the_stated_rate_day_and_night():
    law = parameters(400, per_machine_day=1.0, **quiet(diurnal=0.5))
    model = FleetModel(12, law)
    spells = always(model, [{}])

    times = np.concatenate([model.happenings(tick, spells)[0].seconds for tick in range(240)])

    assert len(times) / (400 * 20) == pytest.approx(1.0, rel=0.05)
    by_day = np.mean(np.sin(2 * np.pi * times / 86_400) > 0)
    assert by_day == pytest.approx(0.5 + 0.5 / np.pi, abs=0.02)


@pytest.mark.statistical
def test_throughput_effect_is_recovered_exactly_on_the_same_machines():
    model = FleetModel(7, parameters(effects=(Effect("bmc", "2.0", throughput=0.97),)))

    old = model.observations(5, always(model, [{}])).throughput
    new = model.observations(5, always(model, [{"bmc": "2.0"}])).throughput

    assert np.allclose(new / old, 0.97)


@pytest.mark.statistical
def test_machines_of_a_job_share_their_ups_and_downs():
    model = FleetModel(7, parameters(200, machine_sd=0.0, slow_share=0.0, noise_sd=0.01))
    spells = always(model, [{}])
    series = np.stack([model.observations(tick, spells).throughput for tick in range(200)])
    same = np.corrcoef(series[:, 0], series[:, 1])[0, 1]
    apart = np.corrcoef(series[:, 0], series[:, 30])[0, 1]

    assert model.job_of[0] == model.job_of[1] != model.job_of[30]
    assert same > 0.7
    assert abs(apart) < 0.4


@pytest.mark.statistical
def test_recoveries_follow_the_path_mix_and_their_medians():
    law = parameters(400, per_machine_day=5.0, recovery_job_sd=0.0, **quiet())
    model = FleetModel(13, law)
    spells = always(model, [{}])
    drawn = [model.happenings(tick, spells)[1] for tick in range(60)]
    path = np.concatenate([one.path for one in drawn])
    minutes = np.concatenate([one.end - one.start for one in drawn]) / 60

    shares = np.bincount(path, minlength=4) / len(path)
    medians = [float(np.median(minutes[path == p])) for p in range(3)]

    assert shares == pytest.approx([0.50, 0.33, 0.155, 0.015], abs=0.02)
    assert medians == pytest.approx([1.0, 8.0, 30.0], rel=0.1)
    assert minutes.max() <= 8 * 60


def test_every_fault_of_an_interrupting_family_has_one_recovery():
    model = FleetModel(7, parameters(**quiet()))
    interrupting = {s.name for s in model.parameters.signatures if s.interrupts}

    faults, recoveries = model.happenings(3, always(model, [{}]))

    expected = sorted(
        zip(
            faults.machine[[n in interrupting for n in faults.signature]].tolist(),
            faults.seconds[[n in interrupting for n in faults.signature]].tolist(),
            strict=True,
        )
    )
    assert expected
    assert sorted(zip(recoveries.machine.tolist(), recoveries.start.tolist(), strict=True)) == (
        expected
    )


def test_a_slower_recovery_lasts_longer_by_its_factor_where_the_cap_does_not_bind():
    law = parameters(recovery_cap_hours=1e6, effects=(Effect("bmc", "2.0", recovery=1.5),))
    model = FleetModel(7, law)

    old = model.happenings(3, always(model, [{}]))[1]
    new = model.happenings(3, always(model, [{"bmc": "2.0"}]))[1]

    assert np.allclose((new.end - new.start) / (old.end - old.start), 1.5)


def test_a_machine_out_of_service_reports_nothing_and_has_no_faults():
    model = FleetModel(7, parameters(per_machine_day=20.0))
    rows = [(i, 0.0, FOREVER, -FOREVER, 0) for i in range(len(model)) if i != 4]
    spells = Spells.build(rows, profiles=[model.profile({})])

    faults, recoveries = model.happenings(2, spells)
    reports = model.observations(2, spells)

    assert len(faults.machine) > 20
    assert 4 not in faults.machine
    assert 4 not in recoveries.machine
    assert 4 not in reports.machine
    assert len(reports.machine) == len(model) - 1


def test_nobody_in_service_is_no_error():
    model = FleetModel(7, parameters())
    nobody = Spells.build([], profiles=[])

    assert len(model.happenings(2, nobody)[0].machine) == 0
    assert len(model.observations(2, nobody).machine) == 0


def test_a_machine_in_service_for_part_of_a_tick_reports_that_part():
    model = FleetModel(7, parameters())
    start = model.tick_start(2)
    spells = Spells.build(
        [(0, start, start + 600, -FOREVER, 0), (0, start + 900, FOREVER, -FOREVER, 0)],
        profiles=[model.profile({})],
    )

    report = model.observations(2, spells)

    assert report.in_service_seconds.tolist() == [7200 - 300]


@pytest.mark.statistical
def test_the_first_hours_after_a_boot_by_install_are_five_times_as_bad():
    law = parameters(400, per_machine_day=2.0, **quiet())
    model = FleetModel(14, law)
    rows = [(i, -FOREVER, FOREVER, FOREVER if i % 2 else -FOREVER, 0) for i in range(400)]
    spells = Spells.build(rows, profiles=[model.profile({})])
    counts = np.zeros(2)

    for tick in range(72):
        counts += np.bincount(model.happenings(tick, spells)[0].machine % 2, minlength=2)

    exposure = [model.multiplier[0::2].sum(), model.multiplier[1::2].sum()]
    ratio = (counts[1] / exposure[1]) / (counts[0] / exposure[0])
    assert ratio == pytest.approx(5.0, rel=0.1)


def test_a_shock_strikes_machines_of_one_job_within_moments():
    law = parameters(
        200, per_machine_day=1e-6, burst_mean=0.0, novel_per_machine_day=0.0,
        shocks_per_job_day=2.0,
    )  # fmt: skip
    law = replace(law, signatures=field_signatures(per_machine_day=1e-6))
    model = FleetModel(15, law)
    spells = always(model, [{}])
    drawn = [model.happenings(tick, spells)[0] for tick in range(12)]
    found = 0

    for faults in drawn:
        if len(faults.machine) < 2:
            continue
        for job in np.unique(model.job_of[faults.machine]):
            times = np.sort(faults.seconds[model.job_of[faults.machine] == job])
            close = np.diff(times) <= 90
            found += int(close.sum())

    assert found > 20


def test_extra_alarms_come_within_the_hour_after_their_fault():
    model = FleetModel(7, parameters(burst_mean=3.0))
    faults, _ = model.happenings(2, always(model, [{}]))
    time_of = dict(zip(faults.key, faults.seconds, strict=True))
    extra = [key for key in faults.key if ".b" in key]

    delays = [
        time_of[key] - time_of["{}.f{}".format(*key.rsplit(".", 1)[0].split(".b"))] for key in extra
    ]

    assert extra
    assert all(0 <= delay <= 3600 for delay in delays)


def test_a_firmware_brings_its_own_unheard_of_signature():
    effect = Effect("bmc", "2.0", novel_signature="xid.999", novel_rate=2.0)
    model = FleetModel(7, parameters(effects=(effect,)))

    names = {
        (name, int(machine) % 2)
        for tick in range(48)
        for faults in [model.happenings(tick, always(model, [{}, {"bmc": "2.0"}]))[0]]
        for name, machine in zip(faults.signature, faults.machine, strict=True)
    }

    assert ("xid.999", 1) in names
    assert ("xid.999", 0) not in names


@pytest.mark.statistical
def test_lemons_are_rare_and_the_mean_multiplier_is_one():
    law = Parameters(
        layouts=(Layout("dgx-h100", "h100", 20_000),),
        signatures=field_signatures(per_machine_day=0.2),
    )
    model = FleetModel(16, law)

    lemons = np.array([facts.is_lemon for facts in model.machines])

    assert model.multiplier.mean() == pytest.approx(1.0)
    assert lemons.mean() == pytest.approx(0.015, abs=0.003)
    assert np.mean(model.multiplier[lemons]) > 10 * np.mean(model.multiplier[~lemons])


def test_parameters_survive_storing():
    law = parameters(effects=(tripled(novel_signature="xid.999", novel_rate=0.02),))

    assert Parameters.from_document(law.as_document()) == law


def test_an_effect_beyond_the_head_room_is_refused():
    with pytest.raises(ValueError, match="max_ratio"):
        parameters(effects=(Effect("bmc", "2.0", ratios={"*": 11.0}),))


def test_an_unknown_class_of_failure_is_refused():
    with pytest.raises(ValueError, match="accepted"):
        Effect("bmc", "2.0", failures={"brick": 0.1})
