"""The virtual prober: each machine's own speed by its true firmware, never of one at work."""

from datetime import timedelta
from statistics import fmean

import pytest

from simulation import jobs
from simulation.adapters import model_of
from simulation.models import VirtualJob, VirtualMachine
from simulation.parameters import JobMix
from simulation.prober import VirtualProber
from tests.simulation.fleets import ORIGIN, make_fleet, tripled

pytestmark = pytest.mark.django_db
AT = ORIGIN + timedelta(hours=1)
LENGTH = timedelta(minutes=3)


def probe(names, *, now=AT + LENGTH):
    found = VirtualProber().probe(names, key="probe-1-1", begun=AT, now=now)
    return {one.machine: one for one in found}


def test_a_slower_firmware_shows_on_the_machines_that_run_it_and_on_no_others():
    fleet = make_fleet(effects=(tripled(throughput=0.9),))
    names = [machine.name for machine in model_of(fleet).machines]
    slow = VirtualMachine.objects.filter(machine__name__in=names[:10])
    before = probe(names)
    slow.update(versions={"bmc": "2.0", "bios": "3.1"})

    after = probe(names)

    ratios = [after[name].throughput / before[name].throughput for name in names]
    assert fmean(ratios[:10]) == pytest.approx(0.9, abs=1e-6)
    assert ratios[10:] == [1.0] * 30  # asked again, the same figure
    assert all(one.end - one.start == LENGTH for one in after.values())


def test_before_the_test_is_over_there_is_no_figure():
    fleet = make_fleet()
    names = [machine.name for machine in model_of(fleet).machines]

    assert probe(names, now=AT + LENGTH / 2) == {}


def test_a_machine_at_work_is_left_out():
    fleet = make_fleet(jobs=JobMix(sizes=(2, 4), mean_hours=40.0, load=0.9))
    names = [machine.name for machine in model_of(fleet).machines]
    jobs.place(fleet, model_of(fleet), now=ORIGIN)
    running = VirtualJob.objects.filter(started_at__lte=AT, ends_at__gt=AT)
    busy = {names[index] for job in running for index in job.machines}

    found = probe(names)

    assert busy
    assert not busy & set(found)
    assert set(found) <= set(names) - busy
