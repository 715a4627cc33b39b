"""Which machines a selector names."""

import difflib
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_

from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from fleet.errors import SelectorError
from fleet.models import Machine
from fleet.selection import Check, Requirement, parse

# What a selector may name, and the column that it means; anything else is a label.
FIELDS = {
    "name": "name",
    "platform": "platform__name",
    "team": "team__name",
    "site": "site",
    "pool": "pool",
    "rack": "rack",
    "chassis": "chassis",
    "power_domain": "power_domain",
    "nvlink_domain": "nvlink_domain",
    "leaf": "leaf",
    "job": "job",
    "workload": "workload",
    "serial": "serial",
    "scheduler_node": "scheduler_node",
    "state": "state",
}


def machines_matching(text: str) -> QuerySet[Machine]:
    """Return the machines for which every requirement of the selector holds.

    Raises
    ------
    SelectorError
        If the selector is empty or malformed, or names neither a field nor a label that any
        machine carries. It never falls back to all machines.
    """
    requirements = parse(text)
    machines = Machine.objects.all()
    labels = [r.key for r in requirements if r.key not in FIELDS]
    _refuse_unknown(labels)
    for key in labels:
        value = Cast(KeyTextTransform(key, "labels"), TextField())  # compares as text, not JSON
        machines = machines.alias(**{_alias(key, labels): value})
    return machines.filter(reduce(and_, (_condition(r, labels) for r in requirements)))


def _refuse_unknown(keys: Iterable[str]) -> None:
    for key in keys:
        if not Machine.objects.filter(labels__has_key=key).exists():
            near = difflib.get_close_matches(key, FIELDS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise SelectorError(
                f"{key!r} is neither a field nor a label of any machine; {hint}"
                f"fields: {', '.join(FIELDS)}"
            )


def _alias(key: str, labels: Sequence[str]) -> str:
    return f"label_{labels.index(key)}"


def _condition(requirement: Requirement, labels: Sequence[str]) -> Q:
    """Return one requirement as a condition; an empty field counts as not set."""
    column = FIELDS.get(requirement.key) or _alias(requirement.key, labels)
    is_unset = Q(**{f"{column}__isnull": True})
    if requirement.key in FIELDS:
        is_unset |= Q(**{column: ""})
    among = Q(**{f"{column}__in": requirement.values})
    match requirement.check:
        case Check.IN:
            return among
        case Check.NOT_IN:
            return is_unset | ~among
        case Check.PRESENT:
            return ~is_unset
        case Check.ABSENT:
            return is_unset
