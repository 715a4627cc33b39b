"""From counters to faults: a rise since the last reading is one fault event, with how many."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Window
from django.db.models.functions import Lag

from fleet.bulk import batches
from fleet.models import CounterSample
from fleet.telemetry.counters import Reading, increase

_LOOK_UP = 500
#: How far back the reading before one is looked for.
_REACH = timedelta(days=7)


def faults_of(
    samples: Sequence[Mapping[str, Any]], *, source: str, now: datetime
) -> list[dict[str, Any]]:
    """Return the faults that these stored samples show, as rows; mark those that went backwards.

    A sample that arrives after a later one of its series shows none: what it tells of has been
    counted with that one. Safe to repeat: the rows have keys of their own.
    """
    keys = {sample["source_key"] for sample in samples}
    rows = _with_readings_before(samples)
    known: dict[tuple[int, str], datetime] = {}
    for row in rows:
        if row["source_key"] not in keys or row["source"] != source:
            known[row["machine_id"], row["signature"]] = row["time"]
    faults, backwards = [], []
    for row in rows:
        latest = known.get((row["machine_id"], row["signature"]))
        if row["source_key"] not in keys or (latest is not None and row["time"] < latest):
            continue
        if row["value_before"] is None:
            continue  # the first reading: nothing to compare it with
        before = Reading(row["value_before"], row["boot_before"])
        rise = increase(before, Reading(row["value"], row["boot_id"]))
        if rise is None:
            backwards.append(row["pk"])
        elif rise > 0:
            faults.append(_fault(row, rise, now=now))
    for some in batches(backwards, size=_LOOK_UP):
        CounterSample.objects.filter(pk__in=some).update(is_backwards=True)
    return faults


def _with_readings_before(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples' series, in order of time, each value with the one before it."""
    if not samples:
        return []
    names = sorted({sample["signature"] for sample in samples})
    since = min(sample["time"] for sample in samples) - _REACH
    series: dict[str, Any] = {
        "partition_by": ["machine_id", "signature"],
        "order_by": [F("time"), F("pk")],
    }
    rows: list[dict[str, Any]] = []
    for some in batches(sorted({sample["machine_id"] for sample in samples}), size=_LOOK_UP):
        found = CounterSample.objects.filter(
            machine_id__in=some, signature__in=names, time__gte=since, is_ahead=False
        ).annotate(
            value_before=Window(Lag("value"), **series),
            boot_before=Window(Lag("boot_id"), **series),
        )
        told = found.order_by("time", "pk").values(
            "pk",
            "machine_id",
            "signature",
            "time",
            "value",
            "boot_id",
            "source",
            "source_key",
            "value_before",
            "boot_before",
        )
        rows.extend(dict(row) for row in told)
    return rows


def _fault(row: Mapping[str, Any], rise: int, *, now: datetime) -> dict[str, Any]:
    return {
        "machine_id": row["machine_id"],
        "time": row["time"],
        "signature": row["signature"],
        "severity": "",
        "component": "",
        "boot_id": row["boot_id"],
        "job": "",
        "attributes": {"increase": rise},
        "source_key": f"counter {row['source_key']}"[:200],
        "is_ahead": False,
    }
