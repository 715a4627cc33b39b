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
    FIND_NO_FAULT = "find_no_fault"
    FAIL_REPAIR = "fail_repair"
    RETRY = "retry"
    BREAK_GLASS = "break_glass"
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
    """What a state asks of whom, until when, and how it is left.

    `success` and `failure` are the moves out of it that mean so. `silence` is the move that the
    watchdog makes by itself once the deadline is over; None where no move is safe without a
    person: the machine stays as it is, and a notice says whose it is and what comes next.
    """

    owner: Role
    next_step: str
    deadline_hours: float | None
    success: tuple[Trigger, ...] = ()
    failure: tuple[Trigger, ...] = ()
    silence: Trigger | None = None


_T = Trigger  # the table reads better without it spelt out

# Deadlines: field practice (drain 1 h, update 40 min, queues 1-24 h, supplier 14 days).
STATES: Mapping[State, StateRule] = {
    State.REGISTERED: StateRule(
        Role.ASSETS,
        "queue for validation",
        24.0,
        success=(_T.QUEUE_VALIDATION, _T.VOUCH),
        failure=(_T.SUSPECT,),
        silence=_T.QUEUE_VALIDATION,
    ),
    State.AWAITING_VALIDATION: StateRule(
        Role.VALIDATION,
        "start the gate plan",
        4.0,
        success=(_T.START_VALIDATION,),
        failure=(_T.TAKE_OUT,),
    ),
    State.VALIDATING: StateRule(
        Role.VALIDATION,
        "run the checks of the plan",
        4.0,
        success=(_T.PASS_CHECKS,),
        failure=(_T.FAIL_CHECKS, _T.TAKE_OUT),
    ),
    State.VALIDATION_FAILED: StateRule(
        Role.TRIAGE,
        "diagnose again, order a repair, or, after the first failure, try the checks once more",
        8.0,
        success=(_T.REDIAGNOSE, _T.ORDER_REPAIR, _T.RETRY),
        failure=(_T.SUSPECT,),
    ),
    State.OBSERVING: StateRule(
        Role.VALIDATION,
        "let the observation time pass",
        72.0,
        success=(_T.END_OBSERVATION,),
        failure=(_T.FAIL_CHECKS, _T.TAKE_OUT),
    ),
    State.AWAITING_RELEASE: StateRule(
        Role.REVIEWER,
        "review the evidence and release",
        4.0,
        success=(_T.RELEASE,),
        failure=(_T.REJECT, _T.TAKE_OUT),
    ),
    State.IN_SERVICE: StateRule(
        Role.CAPACITY,
        "take work",
        None,
        success=(_T.DRAIN,),
        failure=(_T.TAKE_OUT, _T.DRAIN),
    ),
    State.DRAINING: StateRule(
        Role.SCHEDULER,
        "wait until no job is attached",
        1.0,
        success=(_T.START_UPDATE, _T.CALL_OFF, _T.TAKE_OUT),
        failure=(_T.TAKE_OUT,),
    ),
    State.UPDATING: StateRule(
        Role.ROLLOUT,
        "apply the bundle",
        4.0,
        success=(_T.VERIFY,),
        failure=(_T.FAIL_UPDATE,),
    ),
    State.VERIFYING: StateRule(
        Role.ROLLOUT,
        "read the versions back",
        1.0,
        success=(_T.RETURN,),
        failure=(_T.FAIL_UPDATE,),
    ),
    State.AWAITING_DIAGNOSIS: StateRule(
        Role.TRIAGE,
        "assign a diagnosis",
        1.0,
        success=(_T.DIAGNOSE, _T.ORDER_REPAIR),
        failure=(_T.SUSPECT,),
    ),
    State.DIAGNOSING: StateRule(
        Role.TRIAGE,
        "name component and repair",
        4.0,
        success=(_T.ORDER_REPAIR, _T.FIND_NO_FAULT),
        failure=(_T.REDIAGNOSE, _T.SUSPECT),
    ),
    State.AWAITING_REPAIR: StateRule(
        Role.DATA_CENTRE,
        "schedule the work",
        24.0,
        success=(_T.START_REPAIR, _T.SEND_AWAY),
        failure=(_T.REDIAGNOSE, _T.SUSPECT),
    ),
    State.REPAIRING: StateRule(
        Role.DATA_CENTRE,
        "do the work, record the serials",
        4.0,
        success=(_T.CLOSE_REPAIR, _T.SEND_AWAY),
        failure=(_T.FAIL_REPAIR,),
    ),
    State.AT_SUPPLIER: StateRule(
        Role.VENDOR,
        "chase the return date",
        14 * 24.0,
        success=(_T.CLOSE_REPAIR, _T.FIND_NO_FAULT, _T.START_REPAIR),
        failure=(_T.FAIL_REPAIR,),
    ),
    State.LEMON_REVIEW: StateRule(
        Role.RELIABILITY,
        "repair, return to the supplier or retire",
        72.0,
        success=(_T.ORDER_REPAIR, _T.SEND_AWAY, _T.REDIAGNOSE),
        failure=(_T.RETIRE,),
    ),
    State.RETIRED: StateRule(Role.ASSETS, "none", None),
}

#: On the way from a repair to its release; a new fault ends it.
AT_THE_GATE = (
    State.AWAITING_VALIDATION,
    State.VALIDATING,
    State.OBSERVING,
    State.AWAITING_RELEASE,
)
#: Out of which a person may, for some hours, put a machine to work without its gate.
BREAKABLE = (*AT_THE_GATE, State.VALIDATION_FAILED, State.AWAITING_DIAGNOSIS, State.AWAITING_REPAIR)

TRANSITIONS: Mapping[tuple[State, Trigger], State] = {
    (State.REGISTERED, _T.QUEUE_VALIDATION): State.AWAITING_VALIDATION,
    (State.REGISTERED, _T.VOUCH): State.IN_SERVICE,
    (State.IN_SERVICE, _T.DRAIN): State.DRAINING,
    (State.IN_SERVICE, _T.TAKE_OUT): State.AWAITING_DIAGNOSIS,  # it is dead: no job to wait for
    (State.DRAINING, _T.CALL_OFF): State.IN_SERVICE,
    (State.DRAINING, _T.TAKE_OUT): State.AWAITING_DIAGNOSIS,
    (State.DRAINING, _T.START_UPDATE): State.UPDATING,
    # Back to the queue out of which an expired break-glass had taken it.
    (State.DRAINING, _T.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.DRAINING, _T.QUEUE_VALIDATION): State.AWAITING_VALIDATION,
    (State.UPDATING, _T.VERIFY): State.VERIFYING,
    (State.UPDATING, _T.FAIL_UPDATE): State.AWAITING_DIAGNOSIS,
    (State.VERIFYING, _T.FAIL_UPDATE): State.AWAITING_DIAGNOSIS,
    (State.VERIFYING, _T.RETURN): State.IN_SERVICE,
    (State.AWAITING_DIAGNOSIS, _T.DIAGNOSE): State.DIAGNOSING,
    (State.AWAITING_DIAGNOSIS, _T.ORDER_REPAIR): State.AWAITING_REPAIR,  # where a rule knows
    (State.DIAGNOSING, _T.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.DIAGNOSING, _T.FIND_NO_FAULT): State.AWAITING_VALIDATION,
    (State.DIAGNOSING, _T.REDIAGNOSE): State.AWAITING_DIAGNOSIS,
    (State.AWAITING_REPAIR, _T.START_REPAIR): State.REPAIRING,
    (State.AWAITING_REPAIR, _T.SEND_AWAY): State.AT_SUPPLIER,
    (State.AWAITING_REPAIR, _T.REDIAGNOSE): State.AWAITING_DIAGNOSIS,
    (State.REPAIRING, _T.CLOSE_REPAIR): State.AWAITING_VALIDATION,
    (State.REPAIRING, _T.SEND_AWAY): State.AT_SUPPLIER,
    (State.REPAIRING, _T.FAIL_REPAIR): State.AWAITING_DIAGNOSIS,
    (State.AT_SUPPLIER, _T.START_REPAIR): State.REPAIRING,  # it is back, work goes on here
    (State.AT_SUPPLIER, _T.CLOSE_REPAIR): State.AWAITING_VALIDATION,
    (State.AT_SUPPLIER, _T.FIND_NO_FAULT): State.AWAITING_VALIDATION,
    (State.AT_SUPPLIER, _T.FAIL_REPAIR): State.AWAITING_DIAGNOSIS,
    (State.AWAITING_VALIDATION, _T.START_VALIDATION): State.VALIDATING,
    (State.VALIDATING, _T.PASS_CHECKS): State.OBSERVING,
    (State.VALIDATING, _T.FAIL_CHECKS): State.VALIDATION_FAILED,
    (State.OBSERVING, _T.FAIL_CHECKS): State.VALIDATION_FAILED,
    (State.OBSERVING, _T.END_OBSERVATION): State.AWAITING_RELEASE,
    (State.AWAITING_RELEASE, _T.RELEASE): State.IN_SERVICE,
    (State.AWAITING_RELEASE, _T.REJECT): State.AWAITING_DIAGNOSIS,
    (State.VALIDATION_FAILED, _T.REDIAGNOSE): State.AWAITING_DIAGNOSIS,
    (State.VALIDATION_FAILED, _T.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.VALIDATION_FAILED, _T.RETRY): State.AWAITING_VALIDATION,
    (State.LEMON_REVIEW, _T.ORDER_REPAIR): State.AWAITING_REPAIR,
    (State.LEMON_REVIEW, _T.SEND_AWAY): State.AT_SUPPLIER,
    (State.LEMON_REVIEW, _T.REDIAGNOSE): State.AWAITING_DIAGNOSIS,
    (State.LEMON_REVIEW, _T.RETIRE): State.RETIRED,
    (State.IN_SERVICE, _T.RETIRE): State.RETIRED,
    **{(state, _T.TAKE_OUT): State.AWAITING_DIAGNOSIS for state in AT_THE_GATE},
    **{(state, _T.BREAK_GLASS): State.IN_SERVICE for state in BREAKABLE},
    **{
        (state, _T.SUSPECT): State.LEMON_REVIEW
        for state in State
        if state not in {State.LEMON_REVIEW, State.RETIRED}
    },
}


def way_back(state: State) -> Trigger:
    """Return the move that ends the drain of a machine whose break-glass is over.

    It goes back to the queue in which it was; what had been shown at its gate counts no more, so
    its checks begin anew.

    Examples
    --------
    >>> way_back(State.OBSERVING)
    <Trigger.QUEUE_VALIDATION: 'queue_validation'>
    """
    if state is State.AWAITING_DIAGNOSIS:
        return Trigger.TAKE_OUT
    return Trigger.ORDER_REPAIR if state is State.AWAITING_REPAIR else Trigger.QUEUE_VALIDATION


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
