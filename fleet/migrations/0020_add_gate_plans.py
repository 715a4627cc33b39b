import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.special import RunPython

from fleet.appendonly import append_only
from fleet.shipped import gate_plans

# SQLite makes the table anew where a column with a default comes in, and drops its triggers.
_GUARD = append_only("fleet", "CheckResult")


class Migration(migrations.Migration):
    dependencies = (("fleet", "0019_add_owners_notices_and_take_outs"),)

    operations = (
        RunPython(_GUARD.reverse_code, _GUARD.code),
        migrations.AddField(
            model_name="checkresult",
            name="reference",
            field=models.CharField(
                blank=True,
                default="",
                help_text="where evidence lies that is kept elsewhere",
                max_length=500,
            ),
            preserve_default=False,
        ),
        append_only("fleet", "CheckResult"),
        migrations.AddField(
            model_name="gate",
            name="asked_at",
            field=models.DateTimeField(blank=True, help_text="when it was last asked", null=True),
        ),
        migrations.AddField(
            model_name="gate",
            name="read_at",
            field=models.DateTimeField(
                blank=True, help_text="when the machine last answered a read-back", null=True
            ),
        ),
        migrations.AddField(
            model_name="gate",
            name="retry_of",
            field=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="retry",
                to="fleet.gate",
            ),
        ),
        migrations.AddField(
            model_name="gate",
            name="review",
            field=models.CharField(
                choices=[
                    ("automatic", "Automatic"),
                    ("human", "Human"),
                    ("rollout", "Rollout"),
                    ("reliability", "Reliability"),
                ],
                default="human",
                help_text="who reviews it; a recurrence asks more",
                max_length=12,
            ),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="gatecheck",
            name="needs_partner",
            field=models.BooleanField(default=False, help_text="it runs over several machines"),
        ),
        migrations.AddIndex(
            model_name="gate",
            index=models.Index(
                condition=models.Q(("made_for", ""), _negated=True),
                fields=["made_for", "status"],
                name="gate_made_for",
            ),
        ),
        migrations.AddIndex(
            model_name="gatecheck",
            index=models.Index(fields=["name"], name="gate_check_name"),
        ),
        migrations.RunPython(gate_plans.load, migrations.RunPython.noop),
    )
