from django.db import migrations


def name_teams(apps, editor):
    """Make each role that a team lists a rule of its own, for every site and pool."""
    alias = editor.connection.alias
    rules = apps.get_model("fleet", "RoleTeam").objects.using(alias)
    for team in apps.get_model("fleet", "Team").objects.using(alias).order_by("pk"):
        for role in team.roles if isinstance(team.roles, list) else []:
            rules.get_or_create(role=role, site="", pool="", defaults={"team": team})


def list_roles(apps, editor):
    """Write the rules for every place back into the teams' lists."""
    alias = editor.connection.alias
    rules = apps.get_model("fleet", "RoleTeam").objects.using(alias)
    for rule in rules.filter(site="", pool="").select_related("team"):
        rule.team.roles = sorted({*rule.team.roles, rule.role})
        rule.team.save(update_fields=["roles"])


class Migration(migrations.Migration):
    dependencies = [("fleet", "0020_add_gate_plans")]

    operations = [migrations.RunPython(name_teams, list_roles)]
