"""What lists of rollouts and their records can be narrowed by."""

from typing import ClassVar

import django_filters

from rollouts import lifecycle
from rollouts.analysis.verdicts import DecisionKind, Reason
from rollouts.models import Attempt, Decision, Evaluation, Policy, Rollout


class RolloutFilter(django_filters.FilterSet):
    """Rollouts by where they stand."""

    status = django_filters.MultipleChoiceFilter(
        choices=[(status.value, status.value) for status in lifecycle.Status]
    )
    mode = django_filters.ChoiceFilter(choices=Rollout.Mode.choices)
    kind = django_filters.ChoiceFilter(choices=Rollout.Kind.choices)
    author = django_filters.CharFilter(field_name="author__username")

    class Meta:
        model = Rollout
        fields: ClassVar = ["name", "status", "mode", "kind", "author", "bundle"]


class DecisionFilter(django_filters.FilterSet):
    """Decisions by what they say and where."""

    wave = django_filters.NumberFilter(field_name="wave__number")
    kind = django_filters.ChoiceFilter(choices=[(kind.value, kind.value) for kind in DecisionKind])
    reason_code = django_filters.ChoiceFilter(
        choices=[(reason.value, reason.value) for reason in Reason]
    )

    class Meta:
        model = Decision
        fields: ClassVar = ["wave", "kind", "reason_code"]


class EvaluationFilter(django_filters.FilterSet):
    """Evaluations by kind, wave and look."""

    wave = django_filters.NumberFilter(field_name="wave__number")

    class Meta:
        model = Evaluation
        fields: ClassVar = ["kind", "wave", "look"]


class AttemptFilter(django_filters.FilterSet):
    """Attempts by machine, wave and where they stand."""

    machine = django_filters.CharFilter(field_name="machine__name")
    wave = django_filters.NumberFilter(field_name="wave__number")

    class Meta:
        model = Attempt
        fields: ClassVar = ["machine", "wave", "status", "triage"]


class PolicyFilter(django_filters.FilterSet):
    """Policies by name."""

    class Meta:
        model = Policy
        fields: ClassVar = ["name", "version"]
