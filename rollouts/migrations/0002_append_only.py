"""Triggers that keep plans' evidence append-only."""

from django.db import migrations

from fleet.appendonly import append_only


class Migration(migrations.Migration):
    dependencies = (("rollouts", "0001_initial"), ("fleet", "0002_append_only"))
    operations = (
        append_only(
            "rollouts",
            "ScoreBlob",
            "Evaluation",
            "Decision",
            "Order",
            "Transition",
            "AttemptEvent",
            "Action",
        ),
    )
