import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.migrations.operations.special import RunPython

from fleet.appendonly import append_only

# SQLite makes the table anew where a column changes or a constraint comes in, without its triggers.
_GUARD = append_only("fleet", "JobImpact")


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0024_name_repairs_in_words"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ImpactCursor",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "done_to",
                    models.PositiveBigIntegerField(default=0, help_text="key of an interruption"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ServiceDay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                ("first_machine", models.BigIntegerField(help_text="first key of the range")),
                ("pool", models.CharField(blank=True, max_length=100)),
                (
                    "job_kind",
                    models.CharField(blank=True, help_text="empty: not told", max_length=24),
                ),
                ("machines", models.PositiveIntegerField(help_text="that reported")),
                ("covered_hours", models.FloatField(help_text="machine-hours that reports cover")),
                ("service_hours", models.FloatField(help_text="machine-hours in service of these")),
            ],
            options={
                "ordering": ("day", "first_machine"),
            },
        ),
        RunPython(_GUARD.reverse_code, _GUARD.code),
        migrations.AddField(
            model_name="jobimpact",
            name="cause",
            field=models.CharField(
                blank=True,
                choices=[
                    ("unknown", "Unknown"),
                    ("hardware", "Hardware"),
                    ("firmware", "Firmware"),
                    ("setting", "Setting"),
                    ("software", "Software"),
                    ("network", "Network"),
                    ("facility", "Facility"),
                    ("operator", "Operator"),
                    ("no_fault_found", "No Fault Found"),
                ],
                help_text="by its source",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="jobimpact",
            name="machine",
            field=models.ForeignKey(
                blank=True,
                help_text="where it was seen; empty: its source named none",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="impacts",
                to="fleet.machine",
            ),
        ),
        migrations.AddField(
            model_name="jobimpact",
            name="recovery_seconds",
            field=models.FloatField(
                blank=True, help_text="where it is not resumed less fault", null=True
            ),
        ),
        migrations.AddField(
            model_name="jobimpact",
            name="stall_seconds",
            field=models.FloatField(
                blank=True, help_text="how long all replicas stood still", null=True
            ),
        ),
        migrations.AlterField(
            model_name="jobimpact",
            name="incident",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="impacts",
                to="fleet.incident",
            ),
        ),
        migrations.AlterField(
            model_name="jobimpact",
            name="job_kind",
            field=models.CharField(
                blank=True,
                choices=[
                    ("pre_training", "Pre Training"),
                    ("reinforcement_learning", "Reinforcement Learning"),
                    ("fine_tuning", "Fine Tuning"),
                    ("inference", "Inference"),
                    ("other", "Other"),
                ],
                default="",
                help_text="empty: not told",
                max_length=24,
            ),
        ),
        migrations.AddIndex(
            model_name="jobimpact",
            index=models.Index(fields=["job", "fault_at"], name="impact_job_fault_at"),
        ),
        migrations.AddConstraint(
            model_name="jobimpact",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("replicas_affected__isnull", True),
                    ("replicas_affected__lte", models.F("replicas_total")),
                    _connector="OR",
                ),
                name="impact_replicas_within_total",
            ),
        ),
        migrations.AddConstraint(
            model_name="jobimpact",
            constraint=models.CheckConstraint(
                condition=models.Q(("incident__isnull", True), ("cause", ""), _connector="OR"),
                name="impact_cause_is_the_incidents",
            ),
        ),
        append_only("fleet", "JobImpact"),
        migrations.AddField(
            model_name="serviceday",
            name="platform",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="+", to="fleet.platform"
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceday",
            constraint=models.UniqueConstraint(
                fields=("day", "first_machine", "platform", "pool", "job_kind"),
                name="service_day_once",
            ),
        ),
    ]
