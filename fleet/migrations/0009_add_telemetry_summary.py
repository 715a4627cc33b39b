"""Add summaries of telemetry, kept ready for planning."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0008_add_partial_rule_and_holds"),
    ]

    operations = [
        migrations.CreateModel(
            name="TelemetrySummary",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                ("first_machine", models.BigIntegerField(help_text="first key of the range")),
                (
                    "last_machine",
                    models.BigIntegerField(default=-1, help_text="last machine that there was"),
                ),
                ("as_of", models.DateTimeField()),
                (
                    "reports_from",
                    models.DateTimeField(
                        blank=True, help_text="start of the first report of the day", null=True
                    ),
                ),
                ("content", models.BinaryField(default=b"")),
                ("leased_until", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ("-day", "first_machine"),
                "constraints": [
                    models.UniqueConstraint(fields=("day", "first_machine"), name="summary_once")
                ],
            },
        ),
    ]
