"""What machines reported over a time, added up: arrays by machine, and their packed form.

A digest is what a plan needs of the past without reading telemetry again. Faults are kept as
clusters: runs of events of one machine and signature that are closer than `CLUSTER_GAP`. Whoever
merges clusters of several signatures by a longer gap gets the very episodes of the single events,
so any family and any such gap can be asked for later.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CLUSTER_GAP = timedelta(minutes=1)
#: An interruption counts for no more than this, as the judge limits it.
LONGEST_RECOVERY_SECONDS = 8 * 3600.0


@dataclass(frozen=True, eq=False)
class Reports:
    """Interval reports by machine, workload and part of the time; equally long columns.

    Parameters
    ----------
    machine, part, workload : int arrays
        Key of the machine, number of the part of the time, code of the workload.
    mean, count : arrays
        Mean relative throughput over `count` reports that carry one.
    covered_seconds, service_seconds : float arrays
        Time that reports cover, and time in service in it.
    """

    machine: IntArray
    part: IntArray
    workload: IntArray
    mean: FloatArray
    count: IntArray
    covered_seconds: FloatArray
    service_seconds: FloatArray


@dataclass(frozen=True, eq=False)
class Clusters:
    """Runs of fault events of one machine and signature; times in microseconds since 1970."""

    machine: IntArray
    signature: IntArray
    first: IntArray
    last: IntArray
    events: IntArray


@dataclass(frozen=True, eq=False)
class Interruptions:
    """Interruptions by machine and recovery path.

    `closed` of `count` have ended; `log_sum` and `log_squares` add up the natural log of their
    seconds; `lost_hours` and `lost_roots` the hours lost by all, each limited, and their roots.
    """

    machine: IntArray
    path: IntArray
    count: IntArray
    closed: IntArray
    log_sum: FloatArray
    log_squares: FloatArray
    lost_hours: FloatArray
    lost_roots: FloatArray


@dataclass(frozen=True, eq=False)
class Digest:
    """Everything that was kept, with the names of the workloads and paths that codes stand for."""

    reports: Reports
    clusters: Clusters
    interruptions: Interruptions
    workloads: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


_FLOATS = {
    "mean",
    "covered_seconds",
    "service_seconds",
    "log_sum",
    "log_squares",
    "lost_hours",
    "lost_roots",
}
#: Stored widths; a machine is stored as its distance from the first one of its range.
_STORED = {
    "machine": "<u2",
    "part": "<i4",
    "workload": "<u2",
    "path": "<u2",
    "signature": "<i4",
    "first": "<i8",
    "last": "<i8",
}


def clusters_of(
    machine: IntArray, signature: IntArray, time: IntArray, *, gap: timedelta = CLUSTER_GAP
) -> Clusters:
    """Merge events of one machine and signature that follow each other within the gap.

    Examples
    --------
    >>> seconds = np.array([0, 30, 300]) * 1_000_000
    >>> found = clusters_of(np.array([1, 1, 1]), np.array([7, 7, 7]), seconds)
    >>> (found.first // 1_000_000).tolist(), found.events.tolist()
    ([0, 300], [2, 1])
    """
    order = np.lexsort((time, signature, machine))
    machine, signature, time = machine[order], signature[order], time[order]
    begins = np.ones(time.size, dtype=np.bool_)
    begins[1:] = (
        (machine[1:] != machine[:-1])
        | (signature[1:] != signature[:-1])
        | (time[1:] - time[:-1] >= gap // timedelta(microseconds=1))
    )
    start = np.flatnonzero(begins)
    end = np.append(start[1:], time.size) - 1 if start.size else start
    return Clusters(
        machine=machine[start],
        signature=signature[start],
        first=time[start],
        last=time[end],
        events=(end - start + 1).astype(np.int64),
    )


def pack(digest: Digest, *, first_machine: int) -> bytes:
    """Serialise one range's digest, the same bytes for the same content."""
    head: dict[str, object] = {"workloads": digest.workloads, "paths": digest.paths}
    body = []
    for name, table in _tables(digest).items():
        head[name] = len(table.machine)
        for field in fields(table):
            values = getattr(table, field.name)
            if field.name == "machine":
                values = values - first_machine
            body.append(values.astype(_dtype(field.name)).tobytes())
    return zlib.compress(json.dumps(head).encode() + b"\n" + b"".join(body), level=1)


def unpack(content: bytes, *, first_machine: int) -> Digest:
    """Return what `pack` packed."""
    line, _, body = zlib.decompress(content).partition(b"\n")
    head = json.loads(line)
    at = 0
    tables: dict[str, object] = {}
    for name, kind in _KINDS.items():
        columns = {}
        for field in fields(kind):
            stored = np.dtype(_dtype(field.name))
            raw = np.frombuffer(body, dtype=stored, count=head[name], offset=at)
            at += stored.itemsize * head[name]
            columns[field.name] = raw.astype(np.float64 if field.name in _FLOATS else np.int64)
        columns["machine"] += first_machine
        tables[name] = kind(**columns)
    return Digest(
        **tables,  # type: ignore[arg-type]
        workloads=tuple(head["workloads"]),
        paths=tuple(head["paths"]),
    )


def join(parts: Sequence[Digest]) -> Digest:
    """Put digests of different machines or times together; codes are made common."""
    workloads = tuple(sorted({name for part in parts for name in part.workloads}))
    paths = tuple(sorted({name for part in parts for name in part.paths}))
    tables: dict[str, object] = {}
    for name, kind in _KINDS.items():
        columns = {}
        for field in fields(kind):
            columns[field.name] = np.concatenate(
                [
                    np.empty(0, dtype=np.float64 if field.name in _FLOATS else np.int64),
                    *(
                        _recoded(part, name, field.name, workloads=workloads, paths=paths)
                        for part in parts
                    ),
                ]
            )
        tables[name] = kind(**columns)
    return Digest(**tables, workloads=workloads, paths=paths)  # type: ignore[arg-type]


def _recoded(
    part: Digest, table: str, column: str, *, workloads: Sequence[str], paths: Sequence[str]
) -> npt.NDArray[np.generic]:
    values: npt.NDArray[np.generic] = getattr(getattr(part, table), column)
    own, common = {"workload": (part.workloads, workloads), "path": (part.paths, paths)}.get(
        column, ((), ())
    )
    if not own or tuple(own) == tuple(common):
        return values
    code = {name: index for index, name in enumerate(common)}
    return np.array([code[name] for name in own], dtype=np.int64)[values.astype(np.int64)]


def _tables(digest: Digest) -> Mapping[str, Reports | Clusters | Interruptions]:
    return {
        "reports": digest.reports,
        "clusters": digest.clusters,
        "interruptions": digest.interruptions,
    }


_KINDS: Mapping[str, type] = {
    "reports": Reports,
    "clusters": Clusters,
    "interruptions": Interruptions,
}


def _dtype(column: str) -> str:
    return "<f8" if column in _FLOATS else _STORED.get(column, "<u4")
