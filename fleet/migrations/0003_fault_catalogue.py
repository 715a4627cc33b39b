"""The fault catalogue's rows."""

from django.db import migrations

from fleet.shipped import signatures


class Migration(migrations.Migration):
    dependencies = (("fleet", "0002_append_only"),)
    operations = (migrations.RunPython(signatures.load, migrations.RunPython.noop),)
