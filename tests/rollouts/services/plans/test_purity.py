"""How pure the jobs of a planned wave would be."""

from io import StringIO

import pytest
from django.core.management import call_command

from fleet.models import Machine
from rollouts import services
from rollouts.services.plans.purity import planned_purity
from tests.factories import NOW, make_machines
from tests.rollouts import rows

pytestmark = pytest.mark.django_db

WAVES = [1, 1, 2, 2, 3, 3, 3, 3]  # the last is the release


def purity(jobs: str) -> dict[int, float | None]:
    """Of eight machines in the drawn order, each in the job of its letter (-: in none)."""
    names = ["" if letter == "-" else letter for letter in jobs]
    for machine, job in zip(make_machines(8), names, strict=True):
        Machine.objects.filter(pk=machine.pk).update(job=job)
    return planned_purity(names, WAVES, judged=(1, 2))


def test_jobs_of_one_arm_are_pure():
    assert purity("aabbcccc") == {1: 1.0, 2: 1.0}


def test_a_job_of_both_arms_is_mixed_and_the_purer_arm_does_not_help():
    # Wave 1: one of two canaries shares its job with a control, who is one of six. Wave 2: one
    # canary shares a job with a machine of wave 1, the other with a control.
    assert purity("abbccddd") == {1: 0.5, 2: 0.0}


def test_a_machine_of_an_earlier_wave_mixes_a_job_of_controls():
    # In wave 2 job a holds a machine of wave 1 and two of four controls.
    assert purity("a-bbaacc")[2] == 0.5


def test_a_machine_without_a_job_works_alone():
    assert purity("----a---") == {1: 1.0, 2: 1.0}


def test_without_any_job_nothing_is_known():
    assert purity("--------") == {1: None, 2: None}


def test_a_machine_outside_the_plan_mixes_its_job():
    make_machines(1, names=["stranger"], job="a")

    assert purity("aabbcccc") == {1: 0.0, 2: 1.0}


def test_a_preview_says_how_pure_each_wave_would_be():
    rollout = rows.draft()
    Machine.objects.update(job="one job of all")

    summary = services.preview(rollout, now=NOW).summary
    out = StringIO()
    call_command("preview", rollout.name, stdout=out)

    assert [wave["purity"] for wave in summary["waves"]] == [0.0, None]  # nobody judges a release
    assert "purity 0%" in out.getvalue()
