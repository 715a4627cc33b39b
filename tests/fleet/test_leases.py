"""A lease lasts as long as its worker lives, and little longer."""

import threading
from datetime import timedelta

import pytest
from django.db import OperationalError

from fleet import leases

SHORT = timedelta(seconds=0.01)


def test_a_lease_is_renewed_until_the_work_is_done():
    before, times = set(threading.enumerate()), []
    twice = threading.Event()

    def renew() -> None:
        times.append(None)
        if len(times) >= 2:
            twice.set()

    with leases.kept(renew, every=SHORT):
        assert twice.wait(10)

    assert set(threading.enumerate()) == before


def test_a_lease_is_given_up_when_the_work_raises():
    before = set(threading.enumerate())

    with pytest.raises(ZeroDivisionError), leases.kept(lambda: None, every=SHORT):
        raise ZeroDivisionError

    assert set(threading.enumerate()) == before


def test_a_renewal_that_cannot_be_written_is_tried_again(caplog: pytest.LogCaptureFixture):
    tries = []
    again = threading.Event()

    def renew() -> None:
        tries.append(None)
        if len(tries) > 1:
            again.set()
        raise OperationalError("database is locked")

    with leases.kept(renew, every=SHORT):
        assert again.wait(10)

    assert "a lease could not be renewed: database is locked" in caplog.text


def test_work_asks_anew_well_before_its_lease_is_over():
    assert leases.RENEWAL * 2 < leases.LEASE
    assert timedelta(seconds=90) > leases.LEASE
