from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0027_index_supplier_cases'),
    ]

    operations = [
        # A default first: taken back, the column comes to rows that are there.
        migrations.AlterField(
            model_name='serviceday',
            name='covered_hours',
            field=models.FloatField(default=0.0, help_text='machine-hours that reports cover'),
        ),
        migrations.RemoveField(
            model_name='serviceday',
            name='covered_hours',
        ),
        migrations.AlterField(
            model_name='serviceday',
            name='service_hours',
            field=models.FloatField(help_text='machine-hours in service that were reported'),
        ),
    ]
