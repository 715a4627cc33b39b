"""What a task does with the lease of its rollout."""

import time
from datetime import timedelta
from functools import partial

import pytest

from fleet import clock, leases
from rollouts import pipeline, tasks
from rollouts.models import Rollout
from tests.rollouts import rows

pytestmark = pytest.mark.django_db


def leased(rollout: Rollout) -> Rollout:
    rollout.refresh_from_db()
    return rollout


def test_a_lease_that_somebody_took_over_is_not_renewed_by_its_first_holder():
    rollout = rows.running()
    soon = clock.steady_time() + timedelta(seconds=1)
    Rollout.objects.filter(pk=rollout.pk).update(lease_token="second", leased_until=soon)

    tasks._renew(rollout.pk, "first")
    assert leased(rollout).leased_until == soon

    tasks._renew(rollout.pk, "second")
    assert leased(rollout).leased_until > soon


@pytest.mark.django_db(transaction=True)
def test_a_look_that_takes_longer_than_its_lease_keeps_it(monkeypatch: pytest.MonkeyPatch):
    rollout = rows.running()
    monkeypatch.setattr(leases, "LEASE", timedelta(seconds=0.5))
    kept = partial(leases.kept, every=timedelta(seconds=0.05))
    monkeypatch.setattr(leases, "kept", kept)
    renewed = []

    def long_look(rollout: Rollout, *, now) -> None:
        begun = leased(rollout).leased_until
        for _ in range(100):
            time.sleep(0.05)
            if leased(rollout).leased_until > begun:
                renewed.append(True)
                return

    monkeypatch.setattr(pipeline, "evaluate", long_look)

    tasks.evaluate(rollout.pk)

    assert renewed == [True]
    assert leased(rollout).leased_until is None
