"""Record what machines report: each record by itself is accepted, a duplicate, or refused."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import models, transaction
from django.db.models.functions import Least

from fleet.adapters import Report
from fleet.bulk import batches, insert_new
from fleet.errors import BatchConflict
from fleet.models import (
    CounterSample,
    Fault,
    FaultSignature,
    Machine,
    Observation,
    Recovery,
    TelemetryBatch,
)
from fleet.services import counters

AHEAD = timedelta(minutes=5)  # a machine's clock may run ahead by this
LENGTH_SLACK_SECONDS = 1.0  # times are rounded to seconds, exposure may not be
LOOK_UP = 5000
LARGEST = 1e100  # what a machine measures is less, and sums and products of such stay finite


@dataclass(frozen=True)
class Refusal:
    """Why one record of a batch was not stored; `index` counts from 0."""

    index: int
    field: str
    value: str
    reason: str


@dataclass(frozen=True)
class BatchResult:
    """What became of the records of one batch."""

    accepted: int
    duplicates: int
    refused: list[Refusal] = field(default_factory=list)


class _Refused(Exception):
    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.value = value
        self.reason = reason


@transaction.atomic
def record(
    reports: Sequence[Report],
    *,
    source: str,
    key: str,
    now: datetime,
    sender: User | None = None,
) -> BatchResult:
    """Store a batch of reports; wrong ones are refused one by one, the others are stored.

    Safe to repeat: a batch answers by its key what it answered first, and a record counts once
    by its source key. Without a source key the record's own identity is the key: of a fault all
    its fields, of an observation machine, interval and workload, of a recovery machine, time and
    job (so that the end of an interruption finds its beginning).

    Parameters
    ----------
    reports : sequence of Report
        `kind` is `observation`, `fault`, `counter` or `recovery`; `fields` are named as the
        model's, the machine by its name, times as datetimes with zone or RFC 3339 text.
    source : str
        Who reports; source keys are unique within it.
    key : str
        The batch's idempotency key within the source.

    Raises
    ------
    BatchConflict
        If the key was used before for other content.
    """
    digest = _digest([[report.kind, report.fields] for report in reports])
    batch, is_new = TelemetryBatch.objects.get_or_create(
        source=source,
        key=key,
        defaults={"received_at": now, "sender": sender, "digest": digest},
    )
    if not is_new:
        return _answer_again(batch, digest=digest)
    result = store(reports, source=source, now=now)
    batch.accepted = result.accepted
    batch.duplicates = result.duplicates
    batch.refused = len(result.refused)
    batch.refusals = [asdict(refusal) for refusal in result.refused]
    batch.save(update_fields=["accepted", "duplicates", "refused", "refusals"])
    return result


def _answer_again(batch: TelemetryBatch, *, digest: str) -> BatchResult:
    if batch.digest != digest:
        raise BatchConflict(
            f"batch {batch.key!r} of {batch.source!r} was received at {batch.received_at} "
            "with other content; use a new key for new content"
        )
    refused = [Refusal(**refusal) for refusal in batch.refusals]
    return BatchResult(batch.accepted, batch.duplicates, refused)


def _digest(content: object) -> str:
    # NaN and the like are refused later, record by record; a digest must not fail on them.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


# --- from reports to rows ----------------------------------------------------


def store(reports: Sequence[Report], *, source: str, now: datetime) -> BatchResult:
    """Store reports without a batch of their own; the caller holds the transaction."""
    machines = _machines_named({report.fields.get("machine") for report in reports})
    rows: dict[str, dict[tuple[object, ...], dict[str, Any]]] = {kind: {} for kind in _KINDS}
    refused = []
    for index, report in enumerate(reports):
        try:
            row = _row(report, machines=machines, now=now)
        except _Refused as why:
            refused.append(Refusal(index, why.name, _shown(why.value), why.reason))
            continue
        rows[report.kind].setdefault(_once(report.kind, row), row)
    _resolve_signatures(rows["fault"].values())
    accepted = sum(
        _insert(kind, list(own.values()), source=source, now=now) for kind, own in rows.items()
    )
    risen = counters.faults_of(list(rows["counter"].values()), source=source, now=now)
    _resolve_signatures(risen)
    _insert("fault", risen, source=source, now=now)
    return BatchResult(accepted, len(reports) - len(refused) - accepted, refused)


def _shown(value: object) -> str:
    """Return the start of a value in a form that every database stores."""
    text = value if isinstance(value, str) else repr(value)
    return text[:100].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _is_storable(text: str) -> bool:
    """Tell whether a database can hold the text: no NUL, no half of a surrogate pair."""
    return "\x00" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _once(kind: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what makes a row unique: an interruption has an open and a closed one."""
    if kind == "recovery":
        return row["source_key"], row["recovered_at"] is None
    return (row["source_key"],)


def _machines_named(names: Iterable[object]) -> dict[str, int]:
    wanted = sorted(name for name in names if isinstance(name, str) and _is_storable(name))
    return {
        name: pk
        for some in batches(wanted, size=LOOK_UP)
        for name, pk in Machine.objects.filter(name__in=some).values_list("name", "pk")
    }


def _row(report: Report, *, machines: Mapping[str, int], now: datetime) -> dict[str, Any]:
    """Turn one report into the values of its row."""
    kind = _KINDS.get(report.kind)
    if kind is None:
        raise _Refused("kind", report.kind, f"unknown kind; known: {', '.join(_KINDS)}")
    for name in report.fields:
        if name not in kind.readers and name not in {"machine", "source_key"}:
            raise _Refused(_shown(name), report.fields[name], f"a {report.kind} has no such field")
    row: dict[str, Any] = {"machine_id": _machine_id(report.fields, machines)}
    for name, reader in kind.readers.items():
        row[name] = reader(name, report.fields.get(name))
    kind.check(row)
    key = report.fields.get("source_key")
    row["source_key"] = _source_key(key, row=row, identity=kind.identity)
    row["is_ahead"] = any(row[name] is not None and row[name] > now + AHEAD for name in kind.times)
    return row


def _machine_id(fields: Mapping[str, object], machines: Mapping[str, int]) -> int:
    name = fields.get("machine")
    if not isinstance(name, str):
        raise _Refused("machine", name, "the name of a machine is needed")
    if name not in machines:
        raise _Refused("machine", name, "no machine has that name")
    return machines[name]


def _source_key(given: object, *, row: Mapping[str, Any], identity: Sequence[str]) -> str:
    if given is not None and given != "":
        return _text(200)("source_key", given)
    return _digest([row["machine_id"], *(row[name] for name in identity)])


def _resolve_signatures(rows: Iterable[dict[str, Any]]) -> None:
    """Replace names of signatures by their keys; an unknown one joins the catalogue as unknown."""
    faults = list(rows)
    first: dict[str, datetime] = {}
    for row in faults:
        name = row["signature"]
        first[name] = min(first.get(name, row["time"]), row["time"])
    known = _signatures_named(first)
    new = [
        FaultSignature(name=name, first_seen_at=time)
        for name, time in sorted(first.items())
        if name not in known
    ]
    FaultSignature.objects.bulk_create(new, ignore_conflicts=True)
    if new:
        known = _signatures_named(first)
    _move_first_seen_back(first, known)
    for row in faults:
        signature = known[row.pop("signature")]
        row["signature_id"] = signature.pk
        row["severity"] = row["severity"] or signature.severity


def _signatures_named(names: Iterable[str]) -> dict[str, FaultSignature]:
    return {
        signature.name: signature
        for some in batches(sorted(names), size=LOOK_UP)
        for signature in FaultSignature.objects.filter(name__in=some)
    }


def _move_first_seen_back(
    first: Mapping[str, datetime], known: Mapping[str, FaultSignature]
) -> None:
    """Keep the earliest time, when a report of an earlier fault arrives late."""
    for name, time in first.items():
        seen = known[name].first_seen_at
        if seen is not None and time < seen:
            FaultSignature.objects.filter(pk=known[name].pk).update(
                first_seen_at=Least("first_seen_at", models.Value(time))
            )


def _insert(kind: str, rows: Sequence[Mapping[str, Any]], *, source: str, now: datetime) -> int:
    if not rows:
        return 0
    columns = list(rows[0])
    # In one order everywhere: two batches that share keys then wait for each other, not in a ring.
    ordered = sorted(rows, key=lambda row: row["source_key"])
    values = [[*(row[column] for column in columns), source, now] for row in ordered]
    return insert_new(_KINDS[kind].model, [*columns, "source", "received_at"], values)


# --- readers of single fields ------------------------------------------------

Reader = Callable[[str, object], Any]


def _time(name: str, value: object) -> datetime:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        time = None
    if not isinstance(time, datetime):
        raise _Refused(name, value, "an RFC 3339 time is needed, such as 2026-01-31T12:00:00Z")
    if time.tzinfo is None:
        raise _Refused(name, value, "the time has no zone; write 2026-01-31T12:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise _Refused(name, value, "the time lies outside the calendar") from None


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Refused(name, value, "a number is needed")
    if not 0 <= value <= LARGEST:  # NaN is not within either
        raise _Refused(name, value, f"a number from 0 to {LARGEST:g} is needed")
    return float(value)


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise _Refused(name, value, "a whole number of at least 0 is needed")
    return value


def _optional(reader: Reader) -> Reader:
    return lambda name, value: None if value is None else reader(name, value)


def _text(limit: int, *, is_needed: bool = False) -> Reader:
    def read(name: str, value: object) -> str:
        if value is None and not is_needed:
            return ""
        if not isinstance(value, str) or (is_needed and not value.strip()):
            raise _Refused(name, value, "a text is needed")
        if len(value) > limit:
            raise _Refused(name, value, f"a text of at most {limit} characters is needed")
        if not _is_storable(value):
            raise _Refused(name, value, "the text holds a character that cannot be stored")
        return value

    return read


def _one_of(choices: Sequence[str]) -> Reader:
    def read(name: str, value: object) -> str:
        if value is None or value == "":
            return ""
        if value not in choices:
            raise _Refused(name, value, f"one of {', '.join(choices)} is needed")
        return str(value)

    return read


def _attributes(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _Refused(name, value, "an object is needed")
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        raise _Refused(name, value, "only JSON without NaN and infinity is stored") from None
    if not _is_storable(text) or "\\u0000" in text:
        raise _Refused(name, value, "the object holds a character that cannot be stored")
    return value


# --- checks over several fields ----------------------------------------------


def _check_observation(row: Mapping[str, Any]) -> None:
    length = (row["end"] - row["start"]).total_seconds()
    if length <= 0:
        raise _Refused("end", row["end"].isoformat(), f"must lie after {row['start'].isoformat()}")
    if row["in_service_seconds"] > length + LENGTH_SLACK_SECONDS:
        raise _Refused(
            "in_service_seconds",
            row["in_service_seconds"],
            f"is more than the interval's {length:g} seconds",
        )


def _check_recovery(row: Mapping[str, Any]) -> None:
    if row["recovered_at"] is None:
        return
    if row["recovered_at"] < row["time"]:
        raise _Refused(
            "recovered_at",
            row["recovered_at"].isoformat(),
            f"lies before {row['time'].isoformat()}",
        )


def _check_nothing(row: Mapping[str, Any]) -> None:
    """Each field of a fault stands for itself."""


@dataclass(frozen=True)
class _Kind:
    model: type[models.Model]
    readers: Mapping[str, Reader]
    identity: Sequence[str]
    times: Sequence[str]
    check: Callable[[Mapping[str, Any]], None]


_KINDS: Mapping[str, _Kind] = {
    "observation": _Kind(
        model=Observation,
        readers={
            "start": _time,
            "end": _time,
            "in_service_seconds": _number,
            "throughput": _optional(_number),
            "workload": _text(100),
            "job": _text(100),
            "boot_id": _text(64),
            "detector": _text(40),
        },
        identity=("start", "end", "workload"),
        times=("end",),
        check=_check_observation,
    ),
    "fault": _Kind(
        model=Fault,
        readers={
            "time": _time,
            "signature": _text(100, is_needed=True),
            "severity": _one_of(FaultSignature.Severity.values),
            "component": _text(80),
            "boot_id": _text(64),
            "job": _text(100),
            "attributes": _attributes,
        },
        identity=(
            "time",
            "signature",
            "severity",
            "component",
            "boot_id",
            "job",
            "attributes",
        ),
        times=("time",),
        check=_check_nothing,
    ),
    "counter": _Kind(
        model=CounterSample,
        readers={
            "time": _time,
            "signature": _text(100, is_needed=True),
            "value": _count,
            "boot_id": _text(64, is_needed=True),
        },
        identity=("time", "signature", "boot_id"),
        times=("time",),
        check=_check_nothing,
    ),
    "recovery": _Kind(
        model=Recovery,
        readers={
            "time": _time,
            "recovered_at": _optional(_time),
            "path": _one_of(Recovery.Path.values),
            "recovery_seconds": _optional(_number),
            "repeated_seconds": _optional(_number),
            "job": _text(100),
        },
        identity=("time", "job"),
        times=("time", "recovered_at"),
        check=_check_recovery,
    ),
}
