"""A wave of the virtual fleet as the judge's samples, without a database."""

import numpy as np

from simulation.fleet_model import FleetModel
from simulation.waves import draw_wave
from tests.simulation.fleets import parameters, tripled


def wave(**changes):
    model = FleetModel(7, parameters(60, effects=(tripled(),)))
    return draw_wave(
        model,
        canaries=np.arange(0, 60, 3),
        controls=np.setdiff1d(np.arange(60), np.arange(0, 60, 3)),
        new=model.profile(changes.pop("versions", {})),
        old=model.profile({}),
        start_tick=96,
        window_hours=24.0,
        **changes,
    )


def test_everybody_on_the_roster_is_there_once():
    samples = wave()

    assert len(samples.units.name) == 60
    assert samples.units.is_canary.sum() == 20


def test_the_same_wave_is_drawn_again():
    first, again = wave(), wave()

    assert np.array_equal(first.faults.time_seconds, again.faults.time_seconds)
    assert np.array_equal(first.observations.throughput, again.observations.throughput)


def test_the_firmware_acts_from_its_boot_on_and_on_canaries_only():
    old, new = wave(), wave(versions={"bmc": "2.0"})
    is_canary = old.units.is_canary

    def counts(samples, *, after: bool) -> np.ndarray:
        chosen = (samples.faults.time_seconds >= 0) == after
        return np.bincount(samples.faults.machine[chosen], minlength=60)

    grown = counts(new, after=True) - counts(old, after=True)
    assert grown[is_canary].sum() > 0
    assert (grown[~is_canary] == 0).all()
    assert np.array_equal(
        counts(new, after=False)[~is_canary], counts(old, after=False)[~is_canary]
    )


def test_the_period_before_is_the_covariate():
    samples = wave()

    assert samples.units.covariates["faults"].sum() > 0
    assert np.isfinite(samples.units.covariates["throughput"]).all()
