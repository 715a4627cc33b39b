"""Tell looks, surveillance and checks of the draw apart; each of them is an evaluation."""

from django.db import migrations, models

from fleet.appendonly import append_only

TRIGGERS = append_only("rollouts", "Evaluation")


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0008_add_release_order")]

    operations = [
        # SQLite makes the table anew, and its triggers go with the old one.
        migrations.RunPython(TRIGGERS.reverse_code, TRIGGERS.code),
        migrations.AddField(
            model_name="evaluation",
            name="kind",
            field=models.CharField(
                choices=[
                    ("look", "Look"),
                    ("surveillance", "Surveillance"),
                    ("draw_check", "Draw Check"),
                ],
                default="look",
                max_length=12,
            ),
        ),
        migrations.RemoveConstraint(model_name="evaluation", name="evaluation_once"),
        migrations.AddConstraint(
            model_name="evaluation",
            constraint=models.UniqueConstraint(
                fields=("wave", "kind", "look"), name="evaluation_once"
            ),
        ),
        append_only("rollouts", "Evaluation"),
    ]
