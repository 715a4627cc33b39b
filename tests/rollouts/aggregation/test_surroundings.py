"""Who works beside whom."""

import pytest

from fleet.models import Machine
from rollouts.aggregation import samples_for
from rollouts.models import Assignment, Wave
from tests.rollouts.aggregation.world import AS_OF, CLOCK, hours, machines, make_wave, observe

pytestmark = pytest.mark.django_db


def test_purity_is_the_share_of_exposure_in_jobs_of_one_arm():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    for end, jobs in ((1, "a a b b"), (2, "a a b b"), (3, "a a a b")):
        for machine, job in zip([*canaries, *controls], jobs.split(), strict=True):
            observe(machine, end=CLOCK + hours(end), job=f"{job}{end // 3}")

    # In the third hour k1 shares a job with both canaries: they lose a third of their hours.
    assert samples_for(wave, as_of=AS_OF).purity == pytest.approx(2 / 3)


def test_an_hour_without_a_job_is_spent_alone():
    canaries, controls = machines("c1"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    for machine, job in zip([*canaries, *controls], ("a", "a", ""), strict=True):
        observe(machine, end=CLOCK + hours(1), job=job)
        observe(machine, end=CLOCK + hours(2), job="")

    assert samples_for(wave, as_of=AS_OF).purity == 0.5  # of the canary; of controls 3 of 4


def test_where_no_report_names_a_job_the_present_ones_stand_in():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    assert samples_for(wave, as_of=AS_OF).purity is None

    Machine.objects.filter(name__in=("c1", "k1")).update(job="mixed")
    Machine.objects.filter(name="c2").update(job="pure")

    assert samples_for(wave, as_of=AS_OF).purity == 0.5


def test_a_job_with_a_stranger_is_mixed():
    canaries, controls = machines("c1", "c2"), machines("k1", "k2")
    wave = make_wave(canaries, controls)
    machines("stranger", job="shared")
    Machine.objects.filter(name="c1").update(job="shared")

    assert samples_for(wave, as_of=AS_OF).purity == 0.5


PLACED = {"site": "s", "leaf": "", "rack": "", "power_domain": ""}


@pytest.mark.parametrize("place", ["leaf", "rack", "power_domain", "chassis", "nvlink_domain"])
def test_who_shares_a_place_with_a_canary_is_near_it(place: str):
    canaries = machines("c1", **PLACED | {place: "1"})
    controls = [
        *machines("k1", **PLACED | {place: "1"}),
        *machines("k2", **PLACED | {place: "2"}),
        *machines("k3", **PLACED | {place: "1", "site": "elsewhere"}),
    ]
    wave = make_wave(canaries, controls)

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 0, 0]


def test_who_shared_a_job_with_a_canary_once_is_near_it():
    canaries, controls = machines("c1", leaf="1"), machines("k1", "k2", leaf="2")
    wave = make_wave(canaries, controls)
    observe(canaries[0], end=CLOCK + hours(1), job="together")
    observe(controls[0], end=CLOCK + hours(1), job="together")
    observe(controls[0], end=CLOCK + hours(2), job="alone")
    observe(controls[1], end=CLOCK + hours(2), job="alone too")

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 0]


def test_a_machine_in_no_known_place_is_never_far():
    canaries = machines("c1", **PLACED | {"leaf": "1"})
    controls = [*machines("k1", **PLACED | {"leaf": "2"}), *machines("k2", **PLACED)]
    wave = make_wave(canaries, controls)

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 0, 1]


def test_beside_a_canary_in_no_known_place_nobody_is_far():
    canaries = [*machines("c1", **PLACED), *machines("c2", **PLACED | {"leaf": "1"})]
    wave = make_wave(canaries, machines("k1", **PLACED | {"leaf": "2"}))

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 1]


def test_without_any_place_nobody_knows_who_is_near():
    nowhere = {"rack": "", "leaf": "", "power_domain": "", "chassis": "", "nvlink_domain": ""}
    wave = make_wave(machines("c1", **nowhere), machines("k1", **nowhere))

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary is None


def test_beside_a_machine_of_an_earlier_wave_nobody_is_far():
    (early,) = machines("early", **PLACED | {"leaf": "2"})
    canaries = machines("c1", **PLACED | {"leaf": "1"})
    controls = [
        *machines("k1", **PLACED | {"leaf": "2"}),
        *machines("k2", **PLACED | {"leaf": "3"}),
    ]
    wave = make_wave(canaries, controls)
    first = Wave.objects.create(rollout=wave.rollout, number=0, size=1, window_hours=1.0)
    Assignment.objects.create(
        rollout=wave.rollout,
        machine=early,
        machine_name="early",
        unit="early",
        stratum="s",
        position=0,
        planned_wave=0,
        wave=first,
    )

    assert samples_for(wave, as_of=AS_OF).units.is_near_canary.tolist() == [1, 1, 0]
