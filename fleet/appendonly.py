"""Records that are written once: the model refuses, and a database trigger has the last word.

The flush of a test database, and the ageing out of observations, need a way past the trigger:
on PostgreSQL the session setting `audit.maintenance`, on SQLite a function of that meaning,
registered on each connection that Django opens (a foreign client has none, so its DELETE
fails).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import connection, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.operations.special import RunPython

from fleet.errors import AppendOnly

_is_maintained: ContextVar[bool] = ContextVar("is_maintained", default=False)


def register_sqlite_function(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Give a new SQLite connection the function that its triggers ask."""
    if connection.vendor == "sqlite":
        # SQLite calls it on the thread that runs the statement, so the context is the caller's.
        connection.connection.create_function(
            "audit_maintenance", 0, lambda: int(_is_maintained.get())
        )


@contextmanager
def maintenance() -> Iterator[None]:
    """Let the enclosed statements change append-only tables (test flush and retention only)."""
    token = _is_maintained.set(True)
    _tell_postgres("on")
    try:
        yield
    finally:
        _tell_postgres("off")
        _is_maintained.reset(token)


def _tell_postgres(value: str) -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('audit.maintenance', %s, false)", [value])


class AppendOnlyQuerySet(models.QuerySet[Any]):
    """A query set that reads and creates, and refuses the rest."""

    def update(self, **kwargs: Any) -> int:
        raise AppendOnly(f"{self.model.__name__} is append-only: a correction is a new row")

    def delete(self) -> tuple[int, dict[str, int]]:
        raise AppendOnly(f"{self.model.__name__} is append-only: rows are never deleted")


class AppendOnlyModel(models.Model):
    """Base of every record: may be created, never changed or deleted."""

    objects = AppendOnlyQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AppendOnly(f"{type(self).__name__} is append-only: a correction is a new row")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise AppendOnly(f"{type(self).__name__} is append-only: rows are never deleted")


_POSTGRES_FUNCTION = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('audit.maintenance', true) = 'on' THEN
    IF TG_OP = 'DELETE' THEN RETURN OLD; ELSE RETURN NEW; END IF;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$;
"""


def append_only(app: str, *names: str) -> RunPython:
    """Return the reversible migration step that installs the triggers of the named models."""
    return RunPython(_installer(app, names), _remover(app, names))


def _tables(apps: Any, app: str, names: tuple[str, ...]) -> list[str]:
    return [apps.get_model(app, name)._meta.db_table for name in names]


def _installer(app: str, names: tuple[str, ...]) -> Callable[[Any, Any], None]:
    def install(apps: Any, editor: Any) -> None:
        if editor.connection.vendor == "postgresql":
            editor.execute(_POSTGRES_FUNCTION, params=None)  # its % is not a placeholder
        for table in _tables(apps, app, names):
            if editor.connection.vendor == "postgresql":
                editor.execute(
                    f'CREATE TRIGGER "{table}_append_only" BEFORE UPDATE OR DELETE ON "{table}" '
                    "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
                )
                editor.execute(
                    f'CREATE TRIGGER "{table}_no_truncate" BEFORE TRUNCATE ON "{table}" '
                    "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
                )
            else:
                for verb in ("UPDATE", "DELETE"):
                    editor.execute(
                        f'CREATE TRIGGER "{table}_no_{verb.lower()}" BEFORE {verb} ON "{table}" '
                        "WHEN audit_maintenance() = 0 "
                        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                    )

    return install


def _remover(app: str, names: tuple[str, ...]) -> Callable[[Any, Any], None]:
    def remove(apps: Any, editor: Any) -> None:
        for table in _tables(apps, app, names):
            if editor.connection.vendor == "postgresql":
                editor.execute(f'DROP TRIGGER IF EXISTS "{table}_append_only" ON "{table}"')
                editor.execute(f'DROP TRIGGER IF EXISTS "{table}_no_truncate" ON "{table}"')
            else:
                for verb in ("update", "delete"):
                    editor.execute(f'DROP TRIGGER IF EXISTS "{table}_no_{verb}"')

    return remove
