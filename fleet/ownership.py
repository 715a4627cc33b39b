"""Which team owns a machine in a state: the narrowest rule for its role, site and pool wins."""

from collections.abc import Callable, Iterable

from django.db.models import Q

from fleet.lifecycle import Role
from fleet.models import RoleTeam

Rule = tuple[str, str, str, int]  # role, site, pool, key of the team; empty means every one


def team_for(role: Role, *, site: str, pool: str) -> int | None:
    """Return the key of the team that takes the role there; None where no team does."""
    here = Q(site__in=("", site)) & Q(pool__in=("", pool))
    rules = RoleTeam.objects.filter(here, role=role)
    return narrowest(rules.values_list("role", "site", "pool", "team_id"))


def team_finder() -> Callable[[str, str, str], int | None]:
    """Return a function that answers for any role, site and pool from one read of the rules."""
    rules = list(RoleTeam.objects.values_list("role", "site", "pool", "team_id"))

    def find(role: str, site: str, pool: str) -> int | None:
        return narrowest(
            rule
            for rule in rules
            if rule[0] == role and rule[1] in ("", site) and rule[2] in ("", pool)
        )

    return find


def narrowest(rules: Iterable[Rule]) -> int | None:
    """Return the team of the rule that says most; a pool says more than a site.

    Examples
    --------
    >>> narrowest([("triage", "", "", 1), ("triage", "dfw", "", 2), ("triage", "", "train", 3)])
    3
    """
    best = max(rules, key=lambda rule: (bool(rule[2]), bool(rule[1])), default=None)
    return best[3] if best else None
