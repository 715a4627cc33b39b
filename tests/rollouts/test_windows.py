"""Maintenance windows in local time, freezes, and when an attempt may start."""

from datetime import UTC, date, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts import policies
from rollouts.errors import PolicyRefused
from rollouts.planning import Freeze, Place, Window, gate, window_reasons

AMSTERDAM = "Europe/Amsterdam"
NIGHTLY = Window("FREQ=DAILY", time(22), timedelta(hours=6), zone=AMSTERDAM)
POOL = Place(site="ams", pool="train")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def opens(window: Window, after: str) -> str:
    found = gate(POOL, at=at(after), windows=[window])
    assert found.opens_at is not None
    return f"{found.opens_at:%Y-%m-%d %H:%M}"


def test_without_windows_and_freezes_it_is_always_open():
    assert gate(POOL, at=at("2026-03-02T12:00")).is_open


def test_a_window_is_open_from_its_local_start_for_its_length():
    # 22:00 in Amsterdam is 21:00 UTC in winter; six hours later it closes.
    is_open = [
        gate(POOL, at=at(instant), windows=[NIGHTLY]).is_open
        for instant in (
            "2026-03-02T20:59",
            "2026-03-02T21:00",
            "2026-03-03T02:59",
            "2026-03-03T03:01",
        )
    ]

    assert is_open == [False, True, True, False]


def test_outside_its_windows_an_attempt_is_told_when_it_may_start():
    found = gate(POOL, at=at("2026-03-02T12:00"), windows=[NIGHTLY])

    assert found.opens_at == at("2026-03-02T21:00")
    assert found.reason == ("outside its maintenance windows; it may start 2026-03-02 21:00 UTC")


def test_an_attempt_that_could_not_end_before_the_window_closes_waits_for_the_next():
    found = gate(POOL, at=at("2026-03-03T01:30"), windows=[NIGHTLY], need=timedelta(hours=2))

    assert found.opens_at == at("2026-03-03T21:00")
    assert found.reason == (
        "its window closes 2026-03-03 03:00 UTC, and an attempt may take 120 min; "
        "it may start 2026-03-03 21:00 UTC"
    )


def test_a_start_that_summer_time_skips_is_the_first_instant_after_the_gap():
    # On 29 March 2026 the clocks of Amsterdam go from 02:00 to 03:00 at 01:00 UTC.
    window = Window("FREQ=DAILY", time(2, 30), timedelta(hours=2), zone=AMSTERDAM)

    assert opens(window, "2026-03-28T12:00") == "2026-03-29 01:00"
    assert opens(window, "2026-03-29T12:00") == "2026-03-30 00:30"


def test_a_start_that_occurs_twice_is_the_first_of_the_two():
    # On 25 October 2026 02:30 is 00:30 UTC and, an hour later, 01:30 UTC again.
    window = Window("FREQ=DAILY", time(2, 30), timedelta(minutes=30), zone=AMSTERDAM)

    assert opens(window, "2026-10-24T12:00") == "2026-10-25 00:30"
    assert opens(window, "2026-10-25T01:15") == "2026-10-26 01:30"


def test_a_window_stays_open_for_elapsed_time_whatever_the_clocks_do():
    window = Window("FREQ=DAILY", time(1), timedelta(hours=3), zone=AMSTERDAM)

    # From 00:00 UTC on: 03:00 UTC is 05:00 in Amsterdam, where clocks show four hours later.
    assert gate(POOL, at=at("2026-03-29T02:59"), windows=[window]).is_open
    assert not gate(POOL, at=at("2026-03-29T03:00"), windows=[window]).is_open


def test_a_gap_of_half_an_hour_ends_where_it_ends():
    # Lord Howe Island: on 4 October 2026 02:00 becomes 02:30, at 15:30 UTC of the day before.
    window = Window("FREQ=DAILY", time(2, 10), timedelta(hours=1), zone="Australia/Lord_Howe")

    assert opens(window, "2026-10-03T12:00") == "2026-10-03 15:30"


def test_a_rule_names_the_local_days():
    window = Window("FREQ=WEEKLY;BYDAY=SA", time(0), timedelta(hours=5), zone="Asia/Tokyo")

    # Saturday 7 March begins in Tokyo on Friday, 15:00 UTC.
    assert opens(window, "2026-03-02T12:00") == "2026-03-06 15:00"


def test_an_interval_counts_from_the_day_that_is_named():
    window = Window(
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO",
        time(0),
        timedelta(hours=5),
        first_on=date(2020, 1, 6),  # 9 March 2026 is 322 weeks later
    )

    assert opens(window, "2026-03-02T06:00") == "2026-03-09 00:00"
    assert opens(window, "2026-03-09T06:00") == "2026-03-23 00:00"


def test_a_window_may_last_over_a_weekend():
    window = Window("FREQ=WEEKLY;BYDAY=FR", time(20), timedelta(hours=60))

    assert gate(POOL, at=at("2026-03-09T07:59"), windows=[window]).is_open
    assert not gate(POOL, at=at("2026-03-09T08:00"), windows=[window]).is_open


def test_windows_that_touch_are_one():
    two = [
        Window("FREQ=DAILY", time(1), timedelta(hours=1)),
        Window("FREQ=DAILY", time(2), timedelta(hours=1)),
    ]

    assert gate(POOL, at=at("2026-03-02T01:30"), windows=two, need=timedelta(minutes=90)).is_open


def test_a_window_of_one_pool_is_not_for_the_others():
    window = Window("FREQ=DAILY", time(0), timedelta(hours=24), pools=frozenset({"train"}))
    noon = at("2026-03-02T12:00")

    assert gate(POOL, at=noon, windows=[window]).is_open
    other = gate(Place(site="ams", pool="serve"), at=noon, windows=[window])
    assert (
        other.reason == "blocked: no maintenance window of the plan is for pool serve at site ams"
    )
    assert other.opens_at is None


def test_draining_may_begin_ahead_of_the_window():
    hour = timedelta(hours=1)

    assert gate(POOL, at=at("2026-03-02T20:00"), windows=[NIGHTLY], ahead=hour).is_open
    early = gate(POOL, at=at("2026-03-02T19:00"), windows=[NIGHTLY], ahead=hour)
    assert early.opens_at == at("2026-03-02T20:00")


CHRISTMAS = Freeze(at("2026-12-20T00:00"), at("2026-12-27T06:00"), "peak season")


def test_nobody_starts_in_a_freeze_and_everybody_is_told_why():
    found = gate(POOL, at=at("2026-12-24T12:00"), freezes=[CHRISTMAS])

    assert found.opens_at == CHRISTMAS.end
    assert found.reason == (
        "frozen until 2026-12-27 06:00 UTC: peak season; it may start 2026-12-27 06:00 UTC"
    )


def test_nobody_starts_who_could_not_be_over_before_a_freeze():
    need = timedelta(hours=2)

    assert gate(POOL, at=at("2026-12-19T22:00"), freezes=[CHRISTMAS], need=need).is_open
    late = gate(POOL, at=at("2026-12-19T22:01"), freezes=[CHRISTMAS], need=need)
    assert late.reason.startswith("a freeze begins before an attempt could be over")
    assert late.opens_at == CHRISTMAS.end


def test_a_long_freeze_does_not_hide_the_window_after_it():
    always = Window("FREQ=DAILY", time(0), timedelta(hours=24))
    long = Freeze(at("2026-01-01T00:00"), at("2026-05-20T06:00"), "migration")

    found = gate(POOL, at=at("2026-01-10T00:00"), windows=[always], freezes=[long])

    assert found.opens_at == long.end


def test_a_freeze_of_another_site_holds_nobody_here():
    other = Freeze(CHRISTMAS.start, CHRISTMAS.end, "peak", sites=frozenset({"fra"}))

    assert gate(POOL, at=at("2026-12-24T12:00"), freezes=[other]).is_open


@given(
    hours=st.integers(0, 24 * 500),
    length=st.integers(1, 30),
    need=st.integers(0, 30),
    hour=st.integers(0, 23),
    frozen=st.lists(st.tuples(st.integers(0, 24 * 500), st.integers(1, 200)), max_size=4),
)
def test_what_is_told_to_open_is_open_then_and_not_before(hours, length, need, hour, frozen):
    now = at("2026-01-01T00:00") + timedelta(hours=hours)
    window = Window("FREQ=DAILY", time(hour), timedelta(hours=length), zone=AMSTERDAM)
    freezes = [
        Freeze(
            at("2026-01-01T00:00") + timedelta(hours=start),
            at("2026-01-01T00:00") + timedelta(hours=start + size),
            "",
        )
        for start, size in frozen
    ]
    asked = {"windows": [window], "freezes": freezes, "need": timedelta(hours=need)}

    found = gate(POOL, at=now, **asked)

    if found.opens_at is None:
        # A daily window of a day or more never closes; a shorter one is refused at planning.
        assert found.is_open or (need > length and length < 23)
        return
    assert not found.is_open
    assert gate(POOL, at=found.opens_at, **asked).is_open
    assert not gate(POOL, at=found.opens_at - timedelta(minutes=1), **asked).is_open


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rrule": "FREQ=MINUTELY"}, "FREQ of 'MINUTELY'"),
        ({"rrule": "BYDAY=MO"}, "FREQ of None"),
        ({"rrule": "FREQ=DAILY;BYHOUR=3"}, "BYHOUR is not accepted"),
        ({"rrule": "FREQ=DAILY;COUNT=3"}, "COUNT is not accepted"),
        ({"rrule": "FREQ=DAILY;INTERVAL=2"}, "name it as first_on"),
        ({"rrule": "FREQ=WEEKLY"}, "does not say on which day"),
        ({"rrule": "FREQ=WEEKLY;BYDAY=XX"}, "cannot be read"),
        ({"rrule": "FREQ=DAILY;UNTIL=20270101T000000Z"}, "accepted: a local day"),
        ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=31"}, "names no day"),
        ({"time_zone": "Europe/Amsterdm"}, "is no known IANA time zone"),
        ({"time_zone": "../etc/passwd"}, "is no known IANA time zone"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(fields, why):
    (reason,) = window_reasons({"start": "22:00", **fields}, place="windows[0]")

    assert why in reason


def test_a_plan_lists_every_slip_in_its_windows_and_freezes():
    window = {"start": "22:00", "duration_minutes": 60, "rrule": "FREQ=WEEKLY"}
    freeze = {"start": "2026-12-27T00:00Z", "end": "2026-12-20T00:00Z", "reason": "peak"}

    with pytest.raises(PolicyRefused) as refused:
        policies.plan_from({"windows": [window], "freezes": [freeze]})

    assert [reason.partition(":")[0] for reason in refused.value.reasons] == [
        "windows[0].rrule",
        "freezes[0].end",
    ]


def test_a_window_of_a_plan_keeps_its_defaults():
    plan = policies.plan_from({"windows": [{"start": "22:00", "duration_minutes": 240}]})

    assert Window.of(plan["windows"][0]) == Window("FREQ=DAILY", time(22), timedelta(hours=4))
