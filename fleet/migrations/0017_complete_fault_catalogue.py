"""The fault catalogue's gaps and sympathetic codes, all XID codes, and better words for some."""

from django.db import migrations

from fleet.shipped import signatures

#: Titles as they were shipped before; a site's own words stand.
OLD_TITLES = {
    **{f"xid.{code}": "NVLink 5 link error" for code in range(144, 151)},
    "xid.155": "NVLink state changed without being asked",
    **{f"xid.{code}": "Power smoothing circuit" for code in range(162, 166)},
}
RULES = ("gap_minutes", "sympathetic_to")


def complete(apps, editor):
    signatures.load(apps, editor)
    rows = apps.get_model("fleet", "FaultSignature").objects.using(editor.connection.alias)
    shipped = {row["name"]: row for row in signatures.catalogue()}
    known = list(rows.filter(name__in=shipped))
    for row in known:
        for name in RULES:
            setattr(row, name, shipped[row.name][name])
        if row.title == OLD_TITLES.get(row.name):
            row.title = shipped[row.name]["title"]
    rows.bulk_update(known, [*RULES, "title"], batch_size=200)


class Migration(migrations.Migration):
    dependencies = (("fleet", "0016_add_tickets"),)
    operations = (migrations.RunPython(complete, migrations.RunPython.noop),)
