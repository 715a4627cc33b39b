"""Which bundle the machines of a platform and pool are meant to run."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from fleet.appendonly import append_only


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0009_add_telemetry_summary"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="DesiredBundle",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("pool", models.CharField(blank=True, max_length=100)),
                ("since", models.DateTimeField()),
                ("reason", models.CharField(max_length=300)),
                ("recorded_at", models.DateTimeField()),
                (
                    "actor",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "bundle",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="desired",
                        to="fleet.firmwarebundle",
                    ),
                ),
                (
                    "platform",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="desired",
                        to="fleet.platform",
                    ),
                ),
            ],
            options={
                "ordering": ("platform", "pool", "pk"),
                "indexes": [
                    models.Index(fields=["platform", "pool"], name="desired_platform_pool")
                ],
            },
        ),
        append_only("fleet", "DesiredBundle"),
    ]
