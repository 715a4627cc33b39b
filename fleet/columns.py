"""Read many rows as columns of numbers: no model instances, no object per time."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db.models import FloatField, Func, QuerySet

CHUNK_ROWS = 10_000

FloatArray = npt.NDArray[np.float64]


class Seconds(Func):
    """Seconds since 1970 of a time, exact to the microsecond and the same on both engines."""

    output_field = FloatField()

    def get_db_converters(self, connection: Any) -> list[Any]:
        """No call per value: both engines give a float or None already."""
        return []

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler, connection, template="EXTRACT(EPOCH FROM %(expressions)s)::float8"
        )

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Stored as text in UTC, 'YYYY-MM-DD HH:MM:SS[.ffffff]'; julianday would round.
        text, parameters = compiler.compile(self.get_source_expressions()[0])
        whole = f"CAST(strftime('%%s', substr({text}, 1, 19)) AS REAL)"
        return f"({whole} + CAST('0' || substr({text}, 20) AS REAL))", [*parameters, *parameters]


def read_columns(
    rows: QuerySet[Any, Any], *, numbers: Sequence[Any], names: Sequence[str] = ()
) -> tuple[list[FloatArray], list[list[str]]]:
    """Return columns of a query, read in chunks: numbers (None becomes NaN), then names."""
    parts: list[list[FloatArray]] = [[] for _ in numbers]
    texts: list[list[str]] = [[] for _ in names]
    for chunk in _chunks(rows.values_list(*numbers, *names).iterator(chunk_size=CHUNK_ROWS)):
        columns = list(zip(*chunk, strict=True))
        for part, column in zip(parts, columns, strict=False):
            part.append(np.array(column, dtype=np.float64))
        for text, column in zip(texts, columns[len(parts) :], strict=True):
            text.extend(column)
    return [np.concatenate(part) if part else np.empty(0) for part in parts], texts


def _chunks(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield chunk
