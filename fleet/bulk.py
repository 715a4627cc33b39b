"""Write many rows once: rows that a unique constraint already holds are left alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from django.db import connection, models

#: Rows of one statement. PostgreSQL takes any number as arrays; SQLite's rows are held twice.
BATCH_ROWS = {"postgresql": 250_000}
FEWEST_ROWS = 5000


def insert_new(
    model: type[models.Model], columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> int:
    """Insert the rows that no unique constraint of the table holds yet; return how many were new.

    Call it inside a transaction. `columns` are attribute names (`machine_id`). One statement per
    batch, whatever the number of rows: one array per column on PostgreSQL, `executemany` on SQLite.
    """
    fields = [_field(model, column) for column in columns]
    write = _insert_arrays if connection.vendor == "postgresql" else _insert_many
    size = BATCH_ROWS.get(connection.vendor, FEWEST_ROWS)
    return sum(write(model, fields, batch) for batch in batches(rows, size=size))


def insert_filled(
    model: type[models.Model], columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> int:
    """Insert rows like `insert_new`; fields that are not named get the model's defaults."""
    left = [
        field
        for field in model._meta.concrete_fields
        if not field.primary_key and field.attname not in columns
    ]
    fixed = tuple(field.get_default() for field in left)
    names = (*columns, *(field.attname for field in left))
    return insert_new(model, names, ((*row, *fixed) for row in rows))


def batches(items: Iterable[Any], *, size: int) -> Iterator[list[Any]]:
    """Cut a sequence into lists of at most `size`."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _field(model: type[models.Model], column: str) -> models.Field[Any, Any]:
    return next(field for field in model._meta.concrete_fields if field.attname == column)


def _names(fields: Sequence[models.Field[Any, Any]]) -> str:
    return ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)


def _insert_many(
    model: type[models.Model], fields: Sequence[models.Field[Any, Any]], rows: list[Any]
) -> int:
    marks = ", ".join(["%s"] * len(fields))
    statement = (
        f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({_names(fields)}) "
        f"VALUES ({marks}) ON CONFLICT DO NOTHING"
    )
    columns = [
        _sqlite_column(field, column)
        for field, column in zip(fields, zip(*rows, strict=True), strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.executemany(statement, list(zip(*columns, strict=True)))
        return int(cursor.rowcount)


def _sqlite_column(field: models.Field[Any, Any], column: Sequence[Any]) -> Sequence[Any]:
    """Return a column's values as SQLite stores them; most are stored as they are."""
    if isinstance(field, models.DateTimeField):
        return [connection.ops.adapt_datetimefield_value(value) for value in column]
    if isinstance(field, models.JSONField):
        return [json.dumps(value) for value in column]
    return column


def _insert_arrays(
    model: type[models.Model], fields: Sequence[models.Field[Any, Any]], rows: list[Any]
) -> int:
    types = [str(field.db_type(connection)) for field in fields]
    arrays = ", ".join(f"%s::{_array_type(kind)}[]" for kind in types)
    picked = ", ".join(
        f"c{at}::jsonb" if kind == "jsonb" else f"c{at}" for at, kind in enumerate(types)
    )
    named = ", ".join(f"c{at}" for at in range(len(types)))
    statement = (
        f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({_names(fields)}) "
        f"SELECT {picked} FROM unnest({arrays}) AS t({named}) ON CONFLICT DO NOTHING"
    )
    values = [
        [json.dumps(value) for value in column] if kind == "jsonb" else list(column)
        for kind, column in zip(types, zip(*rows, strict=True), strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return int(cursor.rowcount)


def _array_type(kind: str) -> str:
    # As text, so that the insert itself refuses what is too long; a cast would cut it silently.
    return "text" if kind.startswith("varchar") or kind == "jsonb" else kind
