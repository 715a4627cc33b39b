"""Times in service, by the changes of state that were known at a cutoff."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.models import Machine, Platform
from rollouts.aggregation import samples_for
from rollouts.aggregation.reading import PRE_DAYS
from tests.rollouts.aggregation.world import AS_OF, CLOCK, START, hours, machines, make_wave, move

pytestmark = pytest.mark.django_db


def spans(samples) -> list[tuple[str, float, float]]:
    table = samples.service
    return [
        (samples.machines.name[m], start / 3600, end / 3600)
        for m, start, end in zip(table.machine, table.start_seconds, table.end_seconds, strict=True)
    ]


def test_service_starts_and_ends_with_the_changes_of_state():
    [a] = machines("a", now=START - hours(10))
    move(a, "in_service", "draining", at=START)
    move(a, "draining", "updating", at=START + hours(0.5))
    move(a, "verifying", "in_service", at=START + hours(1))
    move(a, "in_service", "draining", at=CLOCK + hours(4))

    samples = samples_for(make_wave([a], []), as_of=AS_OF)

    assert spans(samples) == [("a", -12.0, -2.0), ("a", -1.0, 4.0)]


def test_what_happened_after_the_cutoff_is_not_known():
    [a] = machines("a", now=START - hours(10))
    move(a, "in_service", "draining", at=AS_OF + hours(1))
    move(a, "verifying", "in_service", at=AS_OF + hours(2))

    samples = samples_for(make_wave([a], []), as_of=AS_OF)

    assert spans(samples) == [("a", -12.0, np.inf)]


def test_service_before_the_period_before_is_cut():
    [a] = machines("a", now=START - timedelta(days=400))

    samples = samples_for(make_wave([a], []), as_of=AS_OF)

    assert spans(samples) == [("a", -2.0 - 24 * PRE_DAYS, np.inf)]


def test_a_machine_without_recorded_moves_is_in_service_since_it_entered():
    platform = Platform.objects.create(name="bare")
    a, b, c = (
        Machine.objects.create(
            name=name,
            platform=platform,
            state=state,
            entered_at=START - hours(1),
            registered_at=START - hours(5),
        )
        for name, state in (("a", "in_service"), ("b", "awaiting_repair"), ("c", "draining"))
    )
    move(c, "in_service", "draining", at=CLOCK + hours(1))

    samples = samples_for(make_wave([a], [b, c]), as_of=AS_OF)

    assert spans(samples) == [("a", -3.0, np.inf), ("c", -7.0, 1.0)]
