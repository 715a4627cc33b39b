"""Let an evaluation name its own content, as its scores do."""

from django.db import migrations, models

from fleet.appendonly import append_only

TRIGGERS = append_only("rollouts", "Evaluation")


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0012_index_attempt_ends")]

    operations = [
        # SQLite makes the table anew, and its triggers go with the old one.
        migrations.RunPython(TRIGGERS.reverse_code, TRIGGERS.code),
        migrations.AddField(
            model_name="evaluation",
            name="digest",
            field=models.CharField(blank=True, default="", max_length=64),
        ),
        append_only("rollouts", "Evaluation"),
    ]
