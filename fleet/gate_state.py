"""Reads: how a gate stands, what is missing, the fleet's own norm, and who may review it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet

from fleet.lifecycle import Role, State
from fleet.models import CheckResult, Gate, GateCheck, GatePlan, Machine, Repair, Team
from fleet.repair.gating import (
    NORM_DAYS,
    UNFINISHED,
    Computed,
    Stage,
    Status,
    possible_moves,
    rule_in_words,
)
from fleet.repair.steps import HANDS

#: How many of the fleet's newest results its norm is taken from.
MOST_RESULTS = 1000


@dataclass(frozen=True)
class CheckState:
    """One check and its newest result."""

    check: GateCheck
    result: CheckResult | None

    @property
    def is_passed(self) -> bool:
        return self.result is not None and self.result.is_passed

    @property
    def is_failed(self) -> bool:
        return self.result is not None and not self.result.is_passed

    @property
    def is_computed(self) -> bool:
        return "computed" in self.check.rule

    @property
    def stage(self) -> Stage:
        return Stage(self.check.stage)

    @property
    def threshold(self) -> str:
        """The threshold as it stood at the result; before, as the rule says it."""
        if self.result is not None:
            return self.result.threshold
        return rule_in_words(self.check.rule, unit=self.check.unit)


def check_states(gate: Gate) -> list[CheckState]:
    """Return the checks of a gate in order, each with its newest result."""
    checks = list(gate.checks.order_by("position"))
    newest = {
        result.gate_check_id: result
        for result in CheckResult.objects.filter(gate_check__in=checks)
        .select_related("user")
        .prefetch_related("evidence")
        .order_by("pk")
    }
    return [CheckState(check, newest.get(check.pk)) for check in checks]


def present_stage(states: Iterable[CheckState]) -> Stage | None:
    """Return the first stage of which a check has not passed; None once all have."""
    return next((one.stage for one in states if not one.is_passed), None)


def missing(gate: Gate, states: Sequence[CheckState], *, now: datetime) -> list[str]:
    """Say in words what the machine still lacks to be released; nothing once it is over."""
    if gate.status not in UNFINISHED:
        return []
    words = [_lacks(gate, one) for one in states if not one.is_passed]
    if gate.status == Status.OBSERVING and gate.observe_until is not None:
        if gate.observe_until > now:
            words.append(f"the observation ends {_when(gate.observe_until)}")
        elif gate.read_at is None or gate.read_at < gate.observe_until:
            words.append("the machine has not answered a read-back since the observation ended")
    elif gate.status == Status.OPEN and gate.plan.observation_hours and not gate.made_for:
        words.append(f"an observation of {gate.plan.observation_hours:g} h")
    if gate.review != GatePlan.Review.AUTOMATIC:
        words.append(_reviewer(gate))
    return words


def _lacks(gate: Gate, state: CheckState) -> str:
    if state.result is not None:
        return f"{state.check.title}: {state.result.note or 'failed'}"
    if state.is_computed and gate.read_at is None:
        return f"{state.check.title}: the machine has not answered a read-back yet"
    return f"{state.check.title}: no result yet"


def _reviewer(gate: Gate) -> str:
    return {
        GatePlan.Review.HUMAN: "a review by somebody who neither repaired it nor ran its checks",
        GatePlan.Review.ROLLOUT: "the review of its wave by an owner of the rollout",
        GatePlan.Review.RELIABILITY: "a review by somebody who owns reliability",
    }[GatePlan.Review(gate.review)]


def why_not_review(gate: Gate, user: User, *, owners: Iterable[int] = ()) -> str:
    """Return in words why this person may not review the gate; empty if they may.

    Parameters
    ----------
    owners : iterable of user id
        Of a gate that a rollout made: who answers for the rollout.
    """
    if gate.review == GatePlan.Review.ROLLOUT:
        return "" if user.pk in set(owners) else "the gates of a wave are reviewed by its rollout's"
    if why := _own_hands(gate, user):
        return why
    if gate.review == GatePlan.Review.RELIABILITY:
        return why_not_reliability(user)
    return ""


def _own_hands(gate: Gate, user: User) -> str:
    repair = gate.repair
    if repair is not None:
        if repair.technician_id == user.pk or _is_named(user, _technicians(repair)):
            return f"{user} did the repair; somebody else reviews it"
        if repair.events.filter(user=user, kind__in=HANDS).exists():
            return f"{user} laid hands on the repair; somebody else reviews it"
    if CheckResult.objects.filter(gate_check__gate=gate, user=user).exists():
        return f"{user} reported checks of this gate; somebody else reviews it"
    return ""


def _technicians(repair: Repair) -> set[str]:
    """Return everybody who was named as doing the work, as the ticket system names them."""
    assigned = repair.events.filter(kind="assigned").values_list("said", flat=True)
    return {repair.technician_name, *assigned}


def _is_named(user: User, names: Iterable[str]) -> bool:
    """Tell whether one of the names is this person's: a login, a full name or an address.

    A ticket system may write a login with its domain, and a name in either order.
    """
    address = user.email.casefold()
    own = {_words(user.get_username()), _words(user.get_full_name()), _words(address)}
    own |= {_words(address.partition("@")[0])}
    own -= {frozenset()}
    return any(_words(name) in own or _words(name.rpartition("\\")[2]) in own for name in names)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", name.casefold()))


def why_not_reliability(user: User) -> str:
    """Return why this person does not decide for reliability; empty if they may.

    Where no team has taken that role, the permission has to do.
    """
    teams = Team.objects.filter(places__role=Role.RELIABILITY.value)
    if not teams.exists() or teams.filter(members=user).exists():
        return ""
    return f"{user} belongs to no team that owns reliability"


def why_not_retry(gate: Gate) -> str:
    """Return in words why the checks of this gate are not run once more; empty if they may be."""
    machine = gate.machine
    if gate.status != Status.FAILED or machine.state != State.VALIDATION_FAILED:
        return (
            f"gate {gate.pk} is {gate.status} and {machine} is {machine.state}; only a failed one "
            f"is tried again; possible: {possible_moves(Status(gate.status))}"
        )
    if gate.retry_of_id is not None:
        return (
            f"gate {gate.pk} is the second try, after gate {gate.retry_of_id}; "
            "possible: diagnose anew, or order a repair"
        )
    if hasattr(gate, "retry"):
        return f"gate {gate.pk} was tried again already, as gate {gate.retry.pk}"
    return ""


def norm_of(check: GateCheck, *, machine: Machine, now: datetime) -> list[float]:
    """Return what machines of the same platform gave in this check and passed with, lately.

    The machine's own results are left out: a machine that is getting worse is not its own norm.
    """
    results = CheckResult.objects.filter(
        gate_check__name=check.name,
        gate_check__gate__machine__platform=machine.platform_id,
        is_passed=True,
        unit=check.unit,
        value__isnull=False,
        at__gt=now - timedelta(days=NORM_DAYS),
        at__lte=now,
    ).exclude(gate_check__gate__machine=machine)
    newest = results.order_by("-at", "-pk").values_list("value", flat=True)[:MOST_RESULTS]
    return [value for value in newest if value is not None]


def unfinished() -> QuerySet[Gate]:
    """Return the gates that still have a way to go."""
    return Gate.objects.filter(status__in=list(UNFINISHED))


def computed_names(checks: Iterable[GateCheck]) -> dict[Computed, GateCheck]:
    """Return the checks that the product makes itself, by what they compute."""
    return {Computed(one.rule["computed"]): one for one in checks if "computed" in one.rule}


def plan_check_words(plan: GatePlan) -> list[dict[str, Any]]:
    """Return a plan's checks with their thresholds in words."""
    return [
        {**check, "threshold": rule_in_words(check["rule"], unit=check.get("unit", ""))}
        for check in plan.checks
    ]


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
