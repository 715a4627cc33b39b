"""The machine's state machine: one table of states, one table of moves. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import IllegalTransition


class State(StrEnum):
    """Where a machine stands; exactly one state lets it take work."""

    REGISTERED = "registered"
    AWAITING_VALIDATION = "awaiting_validation"
    VALIDATING = "validating"
    VALIDATION_FAILED = "validation_failed"
    OBSERVING = "observing"
    AWAITING_RELEASE = "awaiting_release"
    IN_SERVICE = "in_service"
    DRAINING = "draining"
    UPDATING = "updating"
    VERIFYING = "verifying"
    AWAITING_DIAGNOSIS = "awaiting_diagnosis"
    DIAGNOSING = "diagnosing"
    AWAITING_REPAIR = "awaiting_repair"
    REPAIRING = "repairing"
    AT_SUPPLIER = "at_supplier"
    LEMON_REVIEW = "lemon_review"
    RETIRED = "retired"


class Trigger(StrEnum):
    """What moves a machine on."""

    QUEUE_VALIDATION = "queue_validation"
    VOUCH = "vouch"
    DRAIN = "drain"
    CALL_OFF = "call_off"
    TAKE_OUT = "take_out"
    DIAGNOSE = "diagnose"
    ORDER_REPAIR = "order_repair"
    START_REPAIR = "start_repair"
    SEND_AWAY = "send_away"
    CLOSE_REPAIR = "close_repair"
    START_VALIDATION = "start_validation"
    PASS_CHECKS = "pass_checks"
    FAIL_CHECKS = "fail_checks"
    REDIAGNOSE = "rediagnose"
    END_OBSERVATION = "end_observation"
    RELEASE = "release"
    REJECT = "reject"
    START_UPDATE = "start_update"
    VERIFY = "verify"
    RETURN = "return"
    FAIL_UPDATE = "fail_update"
    SUSPECT = "suspect"
    RETIRE = "retire"


class Role(StrEnum):
    """Who owns a machine in a state; teams take these roles per site or pool."""

    CAPACITY = "capacity"
    SCHEDULER = "scheduler"
    ROLLOUT = "rollout"
    TRIAGE = "triage"
    DATA_CENTRE = "data_centre"
    VENDOR = "vendor"
    VALIDATION = "validation"
    REVIEWER = "reviewer"
    RELIABILITY = "reliability"
    ASSETS = "assets"


@dataclass(frozen=True)
class StateRule:
    """Owner, next step and deadline of a state; `deadline_hours` None means no deadline."""

    owner: Role
    next_step: str
    deadline_hours: float | None


# Deadlines: field practice (drain 1 h, update 40 min, queues 1-24 h, vendor 14 days).
STATES: Mapping[State, StateRule] = {
    State.REGISTERED: StateRule(Role.ASSETS, "queue for validation", 24.0),
    State.AWAITING_VALIDATION: StateRule(Role.VALIDATION, "start the gate plan", 4.0),
    State.VALIDATING: StateRule(Role.VALIDATION, "run the checks of the plan", 4.0),
    State.VALIDATION_FAILED: StateRule(Role.TRIAGE, "diagnose again or order a repair", 8.0),
    State.OBSERVING: StateRule(Role.VALIDATION, "let the observation time pass", 72.0),
    State.AWAITING_RELEASE: StateRule(Role.REVIEWER, "review the evidence and release", 4.0),
    State.IN_SERVICE: StateRule(Role.CAPACITY, "take work", None),
    State.DRAINING: StateRule(Role.SCHEDULER, "wait until no job is attached", 1.0),
    State.UPDATING: StateRule(Role.ROLLOUT, "apply the bundle", 4.0),
    State.VERIFYING: StateRule(Role.ROLLOUT, "read the versions back", 1.0),
    State.AWAITING_DIAGNOSIS: StateRule(Role.TRIAGE, "assign a diagnosis", 1.0),
    State.DIAGNOSING: StateRule(Role.TRIAGE, "name component and repair", 4.0),
    State.AWAITING_REPAIR: StateRule(Role.DATA_CENTRE, "schedule the work", 24.0),
    State.REPAIRING: StateRule(Role.DATA_CENTRE, "do the work, record the serials", 4.0),
    State.AT_SUPPLIER: StateRule(Role.VENDOR, "chase the return date", 14 * 24.0),
    State.LEMON_REVIEW: StateRule(
        Role.RELIABILITY, "repair, return to the supplier or retire", 72.0
    ),
    State.RETIRED: StateRule(Role.ASSETS, "none", None),
}

TRANSITIONS: Mapping[tuple[State, Trigger], State] = {
    (State.REGISTERED, Trigger.QUEUE_VALIDATION): State.AWAITING_VALIDATION,
    (State.REGISTERED, Trigger.VOUCH): State.IN_SERVICE,
    (State.IN_SERVICE, Trigger.DRAIN): State.DRAINING,
    (State.DRAINING, Trigger.CALL_OFF): State.IN_SERVICE,
    (State.DRAINING, Trigger.TAKE_OUT): State.AWAITING_DIAGNOSIS,
    (State.DRAINING, Trigger.START_UPDATE): State.UPDATING,
    (State.UPDATING, Trigger.VERIFY): State.VERIFYING,
    (State.UPDATING, Trigger.FAIL_UPDATE): State.AWAITING_DIAGNOSIS,
    (State.VERIFYING, Trigger.FAIL_UPDATE): State.AWAITING_DIAGNOSIS,
    (State.VERIFYING, Trigger.RETURN): State.IN_SERVICE,
    (State.AWAITING_DIAGNOSIS, Trigger.DIAGNOSE): State.DIAGNOSING,
    (State.DIAGNOSING, Trigger.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.AWAITING_REPAIR, Trigger.START_REPAIR): State.REPAIRING,
    (State.AWAITING_REPAIR, Trigger.SEND_AWAY): State.AT_SUPPLIER,
    (State.REPAIRING, Trigger.CLOSE_REPAIR): State.AWAITING_VALIDATION,
    (State.AT_SUPPLIER, Trigger.CLOSE_REPAIR): State.AWAITING_VALIDATION,
    (State.AWAITING_VALIDATION, Trigger.START_VALIDATION): State.VALIDATING,
    (State.VALIDATING, Trigger.PASS_CHECKS): State.OBSERVING,
    (State.VALIDATING, Trigger.FAIL_CHECKS): State.VALIDATION_FAILED,
    (State.OBSERVING, Trigger.FAIL_CHECKS): State.VALIDATION_FAILED,
    (State.OBSERVING, Trigger.END_OBSERVATION): State.AWAITING_RELEASE,
    (State.AWAITING_RELEASE, Trigger.RELEASE): State.IN_SERVICE,
    (State.AWAITING_RELEASE, Trigger.REJECT): State.AWAITING_DIAGNOSIS,
    (State.VALIDATION_FAILED, Trigger.REDIAGNOSE): State.AWAITING_DIAGNOSIS,
    (State.VALIDATION_FAILED, Trigger.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.LEMON_REVIEW, Trigger.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.LEMON_REVIEW, Trigger.RETIRE): State.RETIRED,
    (State.IN_SERVICE, Trigger.RETIRE): State.RETIRED,
    **{
        (state, Trigger.SUSPECT): State.LEMON_REVIEW
        for state in State
        if state not in {State.LEMON_REVIEW, State.RETIRED}
    },
}


def next_state(state: State, trigger: Trigger) -> State:
    """Return the state that `trigger` leads to.

    Raises
    ------
    IllegalTransition
        If the table has no such move; the message lists what is possible.

    Examples
    --------
    >>> next_state(State.IN_SERVICE, Trigger.DRAIN)
    <State.DRAINING: 'draining'>
    """
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        possible = ", ".join(sorted(move for old, move in TRANSITIONS if old is state)) or "none"
        raise IllegalTransition(
            f"a machine that is {state} cannot {trigger}; possible: {possible}"
        ) from None


def may_take_work(state: State, *, standing_cordons: int) -> bool:
    """Tell whether a scheduler may be given the machine: in service, and no cordon stands."""
    return state is State.IN_SERVICE and standing_cordons == 0
