"""Records refuse to be changed three times over: model, query set, and the database itself."""

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Model, ProtectedError

from fleet import services
from fleet.appendonly import maintenance
from fleet.errors import AppendOnly
from fleet.models import Fault, FirmwareRecord, StateChange
from tests.factories import (
    NOW,
    make_fault_report,
    make_firmware_record,
    make_machine,
)

pytestmark = pytest.mark.django_db

RECORDS = (Fault, FirmwareRecord, StateChange)
on_each = pytest.mark.parametrize("model", RECORDS)


@pytest.fixture(autouse=True)
def rows() -> None:
    machine = make_machine()  # its arrival is a StateChange
    make_firmware_record(machine)
    services.record([make_fault_report(machine)], source="test", key="1", now=NOW)


def raw_verbs() -> list[str]:
    """Return what a foreign client might try; SQLite has no TRUNCATE."""
    verbs = ["UPDATE {} SET machine_id = machine_id", "DELETE FROM {}"]
    # PostgreSQL truncates no table whose foreign keys are still to be checked.
    truncate = "SET CONSTRAINTS ALL IMMEDIATE; TRUNCATE {} CASCADE"
    return [*verbs, truncate] if connection.vendor == "postgresql" else verbs


def run(statement: str) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.rowcount


@on_each
def test_a_stored_record_refuses_to_be_saved_or_deleted(model: type[Model]):
    record = model.objects.get()

    with pytest.raises(AppendOnly, match="a correction is a new row"):
        record.save()
    with pytest.raises(AppendOnly, match="never deleted"):
        record.delete()


@on_each
def test_a_query_set_of_records_refuses_update_and_delete(model: type[Model]):
    with pytest.raises(AppendOnly):
        model.objects.update(machine=None)
    with pytest.raises(AppendOnly):
        model.objects.all().delete()


@on_each
def test_the_database_refuses_raw_sql(model: type[Model]):
    for verb in raw_verbs():
        with pytest.raises(DatabaseError, match="append-only"):
            run(verb.format(model._meta.db_table))

    assert model.objects.count() == 1


@on_each
def test_maintenance_lets_through_and_closes_behind_itself(model: type[Model]):
    table = model._meta.db_table

    with maintenance():
        assert run(f"UPDATE {table} SET machine_id = machine_id") == 1

    with pytest.raises(DatabaseError, match="append-only"):
        run(f"DELETE FROM {table}")


def test_a_machine_that_a_record_names_cannot_be_deleted():
    with pytest.raises(ProtectedError):
        make_machine().delete()
