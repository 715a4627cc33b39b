"""What of the period before the fault guardrail's halting score uses."""

from dataclasses import replace

import numpy as np

from rollouts.analysis.guardrails.faults import FaultTrack
from rollouts.analysis.guardrails.run import Run
from tests.rollouts.analysis import worlds

XIDS = replace(worlds.FAULTS, signatures=("xid-*",))


def track(rows, signatures, *, given, before_hours):
    samples = worlds.world(2, 4, hours=24, faults=worlds.faults(rows, signatures=signatures))
    units = replace(samples.units, covariates={} if given is None else {"faults": np.array(given)})
    end = None if before_hours is None else before_hours * worlds.HOUR
    samples = replace(samples, units=units, before_seconds=end)
    policy = worlds.policy(XIDS)
    looks = tuple(worlds.looks(samples, 2))
    return FaultTrack.prepare(XIDS, Run(samples, policy, worlds.recorded(samples), looks))


PAST = [(0, -30.0), (0, -30.1), (0, -20.0), (1, -25.0), (2, -3.0), (5, -9.0), (5, 3.0)]
NAMES = ["xid-79", "xid-79", "xid-48", "nic-flap", "xid-79", "xid-79", "xid-79"]


def test_a_family_learns_from_its_own_episodes_of_before():
    # Machine 0: two bursts within minutes are one. Machine 1 failed in another way.
    found = track(PAST, NAMES, given=[9.0] * 6, before_hours=0.0)._counts_before()

    assert found.tolist() == [2.0, 0.0, 1.0, 0.0, 0.0, 1.0]


def test_what_happened_between_the_wave_start_and_its_clock_is_no_past():
    # Canaries are installed there: it may be the firmware's doing.
    found = track(PAST, NAMES, given=[9.0] * 6, before_hours=-5.0)._counts_before()

    assert found.tolist() == [2.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_where_the_end_of_the_past_is_not_known_the_counts_that_were_given_serve():
    given = [4.0, 0.0, 1.0, 0.0, 0.0, 2.0]

    found = track(PAST, NAMES, given=given, before_hours=None)._counts_before()

    assert found.tolist() == given


def test_a_recording_that_names_no_past_is_judged_without_one():
    assert track(PAST, NAMES, given=None, before_hours=0.0).foreseen is None


def test_a_past_that_tells_no_machine_apart_is_none():
    assert track([(0, 3.0)], ["xid-79"], given=[0.0] * 6, before_hours=0.0).foreseen is None


def test_a_machine_that_used_to_fail_is_expected_to():
    foreseen = track(PAST, NAMES, given=[9.0] * 6, before_hours=0.0).foreseen

    assert foreseen is not None
    assert foreseen[0] > foreseen[2] > foreseen[1]
    assert foreseen[1] == foreseen[3] == foreseen[4]
