"""Triggers that keep the fleet's records append-only."""

from django.db import migrations

from fleet.appendonly import append_only


class Migration(migrations.Migration):
    dependencies = (("fleet", "0001_initial"),)
    operations = (append_only("fleet", "FirmwareRecord", "Fault", "StateChange"),)
