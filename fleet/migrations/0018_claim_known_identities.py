from django.db import migrations


def claim_what_is_known(apps, editor):
    """Let each machine claim, since its registration, the serial and BMC address of its row."""
    machine = apps.get_model("fleet", "Machine")
    claim = apps.get_model("fleet", "MachineClaim")
    for kind in ("serial", "bmc_address"):
        rows = machine.objects.exclude(**{kind: ""}).values_list("pk", kind, "registered_at")
        claim.objects.bulk_create(
            (
                claim(
                    machine_id=pk,
                    kind=kind,
                    value=value,
                    since=since,
                    source="import",
                    recorded_at=since,
                )
                for pk, value, since in rows.iterator(chunk_size=2000)
            ),
            batch_size=2000,
        )


class Migration(migrations.Migration):
    dependencies = [("fleet", "0017_add_claims_and_capacity_days")]

    operations = [migrations.RunPython(claim_what_is_known, migrations.RunPython.noop)]
