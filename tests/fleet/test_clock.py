"""One clock for all processes: it follows the wall, ticks, or is stepped, and never goes back."""

from datetime import timedelta

import pytest
from django.utils import timezone

from fleet import clock
from fleet.errors import ClockError
from tests.factories import NOW

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def test_without_a_row_and_in_mode_real_the_clock_is_the_walls():
    before = timezone.now()
    assert before <= clock.now() <= timezone.now()

    clock.set_mode("real")

    assert before <= clock.now() <= timezone.now()


def test_a_stepped_clock_stands_until_it_is_stepped():
    clock.set_mode("stepped", at=NOW)
    assert clock.now() == NOW

    clock.step_to(NOW + MINUTE)

    assert clock.now() == NOW + MINUTE


def test_a_step_to_the_same_time_is_no_error():
    clock.set_mode("stepped", at=NOW)

    clock.step_to(NOW)

    assert clock.now() == NOW


def test_a_step_backwards_is_refused():
    clock.set_mode("stepped", at=NOW)

    with pytest.raises(ClockError, match="cannot step"):
        clock.step_to(NOW - MINUTE)

    assert clock.now() == NOW


@pytest.mark.parametrize("mode", ["real", "scaled"])
def test_only_a_stepped_clock_is_stepped(mode):
    clock.set_mode(mode, at=NOW)

    with pytest.raises(ClockError):
        clock.step_to(NOW + MINUTE)


def test_a_virtual_mode_needs_a_time_and_none_before_the_clocks():
    with pytest.raises(ClockError, match="needs the virtual time"):
        clock.set_mode("stepped")

    clock.set_mode("stepped", at=NOW)
    with pytest.raises(ClockError, match="cannot go back"):
        clock.set_mode("scaled", at=NOW - MINUTE)


def test_a_scaled_clock_advances_by_its_rate_at_each_tick_and_not_between():
    clock.set_mode("scaled", at=NOW, rate=60)
    start = timezone.now()
    clock.tick(wall=start, longest=timedelta(days=1))
    before = clock.now()

    ticked = clock.tick(wall=start + timedelta(seconds=2), longest=timedelta(days=1))

    assert ticked == clock.now() == before + 2 * MINUTE


def test_a_stopped_process_stops_time():
    clock.set_mode("scaled", at=NOW)
    start = timezone.now()
    clock.tick(wall=start, longest=MINUTE)
    before = clock.now()

    clock.tick(wall=start + timedelta(days=1), longest=MINUTE)

    assert clock.now() == before + MINUTE


@pytest.mark.parametrize("jump", [-timedelta(hours=1), timedelta(hours=1), timedelta(days=3650)])
def test_time_goes_on_after_the_wall_has_jumped(jump):
    clock.set_mode("scaled", at=NOW)
    start = timezone.now()
    clock.tick(wall=start, longest=MINUTE)
    clock.tick(wall=start + jump, longest=MINUTE)
    before = clock.now()

    clock.tick(wall=start + jump + timedelta(seconds=30), longest=MINUTE)

    assert clock.now() == before + timedelta(seconds=30)


def test_of_two_processes_that_tick_at_once_one_moves_the_clock(monkeypatch):
    clock.set_mode("scaled", at=NOW)
    start = timezone.now()
    clock.tick(wall=start, longest=MINUTE)
    before = clock.now()
    wall = start + timedelta(seconds=10)

    class Racing(type(clock.Clock.objects.all())):
        """Lets the other process tick between this one's read and its write."""

        is_raced = False

        def update(self, **changes):
            if not Racing.is_raced:
                Racing.is_raced = True
                clock.tick(wall=wall, longest=MINUTE)
            return super().update(**changes)

    monkeypatch.setattr(clock.Clock.objects, "_queryset_class", Racing)
    clock.tick(wall=wall, longest=MINUTE)

    assert clock.now() == before + timedelta(seconds=10)


@pytest.mark.parametrize("mode", ["real", "stepped"])
def test_only_a_scaled_clock_ticks(mode):
    clock.set_mode(mode, at=NOW)

    assert clock.tick(wall=timezone.now(), longest=MINUTE) is None
