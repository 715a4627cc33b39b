"""A BMC's telemetry after its update counts once it shows what it showed before."""

from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from fleet import adapters, services, tasks
from fleet.adapters import Snapshot
from fleet.models import TelemetryHold
from fleet.services.holds import differences
from tests.factories import NOW, make_machine

pytestmark = pytest.mark.django_db
SHOWN = Snapshot(("gpu1", "gpu2"), ("Temp_GPU1", "Fan1"), clock_skew_seconds=3.0)
BEFORE = asdict(SHOWN)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("shown", "named"),
    [
        (SHOWN, []),
        (None, ["the BMC does not answer"]),
        (replace(SHOWN, inventory=("gpu1",)), ["part gpu2 is gone"]),
        (
            replace(SHOWN, sensors=("GPU1 Temp", "Fan1")),
            ["sensor Temp_GPU1 is gone", "sensor GPU1 Temp is new"],
        ),
        (replace(SHOWN, sensors=("Temp_GPU1", "Fan1", "Fan2")), []),  # more is no loss
        (replace(SHOWN, clock_skew_seconds=-7200.0), ["its clock is off by -7200 s"]),
        (replace(SHOWN, can_log_in=False), ["the login does not work any more"]),
    ],
)
def test_what_does_not_match_the_snapshot_is_named(shown, named) -> None:
    assert differences(BEFORE, shown) == named


def test_telemetry_is_held_back_from_a_mismatch_to_the_match_and_both_are_kept() -> None:
    machine = make_machine()
    bad = replace(SHOWN, sensors=("Fan1",))

    services.hold_telemetry(machine, before=BEFORE, shown=bad, now=NOW)
    services.hold_telemetry(machine, before=BEFORE, shown=bad, now=NOW + HOUR)
    services.hold_telemetry(machine, before=BEFORE, shown=SHOWN, now=NOW + 2 * HOUR)

    hold = TelemetryHold.objects.get()
    assert (hold.since, hold.until) == (NOW, NOW + 2 * HOUR)
    assert hold.reasons == ["sensor Temp_GPU1 is gone"]


def test_a_matching_bmc_is_never_held() -> None:
    services.hold_telemetry(make_machine(), before=BEFORE, shown=SHOWN, now=NOW)

    assert not TelemetryHold.objects.exists()


def test_holds_are_looked_at_again_until_they_match(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bmc:
        shown: Snapshot | None = None

        def snapshot(self, machine, *, now):
            if self.shown is None:
                raise ConnectionError("refused")
            return self.shown

    bmc = Bmc()
    monkeypatch.setattr(adapters, "installer", lambda: bmc)
    services.hold_telemetry(make_machine(), before=BEFORE, shown=None, now=NOW)

    tasks.check_holds()
    still = TelemetryHold.objects.get().until
    bmc.shown = SHOWN
    tasks.check_holds()
    tasks.check_holds()

    assert still is None
    assert TelemetryHold.objects.get().until is not None


def test_slow_bmcs_delay_the_others_by_one_run_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    seconds = iter(range(0, 10_000, 15))  # one answer takes 15 s of a run's 20 s

    class Slow:
        def snapshot(self, machine, *, now):
            asked.append(machine)
            raise ConnectionError("timed out")

    times = iter(NOW + minute * timedelta(minutes=1) for minute in range(1, 100))
    monkeypatch.setattr(adapters, "installer", Slow)
    monkeypatch.setattr(tasks.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(tasks.clock, "now", lambda: next(times))
    for name in ("a", "b", "c"):
        services.hold_telemetry(make_machine(name=name), before=BEFORE, shown=None, now=NOW)

    for _ in range(3):
        tasks.check_holds()

    assert asked == ["a", "b", "c"]
