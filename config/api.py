"""How errors leave the API: each domain error has a status and a stable code, said once here.

Answers are RFC 9457 problem documents. Views never catch domain errors; a class that is not
listed is a bug and stays one.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, ValidationError
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.serializers import as_serializer_error
from rest_framework.views import exception_handler

import fleet.errors
import rollouts.analysis.errors
import rollouts.errors

CONTENT_TYPE = "application/problem+json"
#: What a database that is gone, restarts or is locked makes Django raise.
DATABASE_AWAY = (OperationalError, InterfaceError)
RETRY_AFTER_SECONDS = 5


class Unstorable(Exception):
    """A name or a value that no column can hold, such as one with a NUL in it; nothing was done."""


class Taken(Exception):
    """Of two people who wrote the same at once this one came second; nothing was done."""


#: Of an error's class and its bases the nearest one listed decides; codes never change.
PROBLEMS: Mapping[type[Exception], tuple[HTTPStatus, str]] = {
    fleet.errors.AppendOnly: (HTTPStatus.CONFLICT, "append_only"),
    fleet.errors.StaleMachine: (HTTPStatus.CONFLICT, "stale_machine"),
    fleet.errors.IllegalTransition: (HTTPStatus.CONFLICT, "illegal_machine_move"),
    fleet.errors.MachineBusy: (HTTPStatus.CONFLICT, "machine_busy"),
    fleet.errors.RetryUsed: (HTTPStatus.CONFLICT, "retry_used"),
    fleet.errors.MachineHeld: (HTTPStatus.CONFLICT, "machine_held"),
    fleet.errors.HandOverRefused: (HTTPStatus.CONFLICT, "hand_over_refused"),
    fleet.errors.TakeOutRefused: (HTTPStatus.CONFLICT, "take_out_refused"),
    fleet.errors.BreakGlassRefused: (HTTPStatus.CONFLICT, "break_glass_refused"),
    fleet.errors.ChangeRefused: (HTTPStatus.BAD_REQUEST, "change_refused"),
    fleet.errors.CordonStands: (HTTPStatus.CONFLICT, "cordon_stands"),
    fleet.errors.IllegalGateMove: (HTTPStatus.CONFLICT, "illegal_gate_move"),
    fleet.errors.StaleGate: (HTTPStatus.CONFLICT, "stale_gate"),
    fleet.errors.GatePlanRefused: (HTTPStatus.BAD_REQUEST, "gate_plan_refused"),
    fleet.errors.CheckRefused: (HTTPStatus.BAD_REQUEST, "check_refused"),
    fleet.errors.CheckClaimed: (HTTPStatus.CONFLICT, "check_claimed"),
    fleet.errors.ResultConflict: (HTTPStatus.CONFLICT, "result_conflict"),
    fleet.errors.SameHands: (HTTPStatus.FORBIDDEN, "same_hands"),
    fleet.errors.NoPartner: (HTTPStatus.CONFLICT, "no_partner"),
    fleet.errors.GateMissing: (HTTPStatus.CONFLICT, "gate_missing"),
    fleet.errors.BundleFrozen: (HTTPStatus.CONFLICT, "bundle_frozen"),
    fleet.errors.BundleNotReady: (HTTPStatus.CONFLICT, "bundle_not_ready"),
    fleet.errors.ClockError: (HTTPStatus.CONFLICT, "clock_refused"),
    fleet.errors.SelfApproval: (HTTPStatus.FORBIDDEN, "self_approval"),
    fleet.errors.RegistrationRefused: (HTTPStatus.BAD_REQUEST, "registration_refused"),
    fleet.errors.ImportRefused: (HTTPStatus.BAD_REQUEST, "import_refused"),
    fleet.errors.IncidentRefused: (HTTPStatus.BAD_REQUEST, "incident_refused"),
    fleet.errors.IncidentClosed: (HTTPStatus.CONFLICT, "incident_closed"),
    fleet.errors.ImpactRefused: (HTTPStatus.BAD_REQUEST, "impact_refused"),
    fleet.errors.ImpactConflict: (HTTPStatus.CONFLICT, "impact_conflict"),
    fleet.errors.SelectorError: (HTTPStatus.BAD_REQUEST, "selector_refused"),
    fleet.errors.AdapterFailed: (HTTPStatus.BAD_GATEWAY, "adapter_failed"),
    fleet.errors.BatchConflict: (HTTPStatus.CONFLICT, "batch_conflict"),
    fleet.errors.ClaimRefused: (HTTPStatus.BAD_REQUEST, "claim_refused"),
    fleet.errors.SwapRefused: (HTTPStatus.CONFLICT, "swap_refused"),
    fleet.errors.IllegalRepairStep: (HTTPStatus.CONFLICT, "illegal_repair_step"),
    fleet.errors.StaleRepair: (HTTPStatus.CONFLICT, "stale_repair"),
    fleet.errors.RepairRefused: (HTTPStatus.BAD_REQUEST, "repair_refused"),
    fleet.errors.EvidenceTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "evidence_too_large"),
    fleet.errors.EvidenceRefused: (HTTPStatus.BAD_REQUEST, "evidence_refused"),
    fleet.errors.EvidenceMissing: (HTTPStatus.GONE, "evidence_missing"),
    fleet.errors.AddressRefused: (HTTPStatus.BAD_REQUEST, "address_refused"),
    fleet.errors.SignatureRefused: (HTTPStatus.UNAUTHORIZED, "signature_refused"),
    fleet.errors.MessageConflict: (HTTPStatus.CONFLICT, "message_conflict"),
    fleet.errors.TicketRefused: (HTTPStatus.CONFLICT, "ticket_refused"),
    rollouts.errors.StaleRollout: (HTTPStatus.CONFLICT, "stale_rollout"),
    rollouts.errors.IllegalTransition: (HTTPStatus.CONFLICT, "illegal_transition"),
    rollouts.errors.PlanRefused: (HTTPStatus.BAD_REQUEST, "plan_refused"),
    rollouts.errors.OrderRefused: (HTTPStatus.CONFLICT, "order_refused"),
    rollouts.errors.PlanChanged: (HTTPStatus.CONFLICT, "plan_changed"),
    rollouts.errors.ApprovalExpired: (HTTPStatus.CONFLICT, "approval_expired"),
    rollouts.errors.UnknownSignature: (HTTPStatus.BAD_REQUEST, "unknown_signature"),
    rollouts.errors.MixedUnit: (HTTPStatus.CONFLICT, "mixed_unit"),
    rollouts.errors.SamePerson: (HTTPStatus.FORBIDDEN, "same_person"),
    rollouts.errors.NotHalted: (HTTPStatus.CONFLICT, "not_halted"),
    rollouts.errors.PolicyRefused: (HTTPStatus.BAD_REQUEST, "policy_refused"),
    rollouts.errors.CaseRefused: (HTTPStatus.BAD_REQUEST, "case_refused"),
    rollouts.errors.FixRefused: (HTTPStatus.BAD_REQUEST, "fix_refused"),
    rollouts.errors.PackageRefused: (HTTPStatus.BAD_REQUEST, "package_refused"),
    rollouts.analysis.errors.AnalysisError: (HTTPStatus.BAD_REQUEST, "not_judgeable"),
    Taken: (HTTPStatus.CONFLICT, "taken"),
    Unstorable: (HTTPStatus.BAD_REQUEST, "unstorable"),
    RequestDataTooBig: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large"),
}


def problem_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Answer a problem document, or None for an error that nobody foresaw."""
    error = foreseen(error)
    if found := known_problem(error):
        status, code = found
        reasons = [{"reason": reason} for reason in getattr(error, "reasons", ())]
        document = problem(status, code=code, detail=str(error), errors=reasons)
        return Response(document, status=status, content_type=CONTENT_TYPE)
    if isinstance(error, DATABASE_AWAY):
        return _database_away()
    response = exception_handler(error, context)  # sets WWW-Authenticate and Retry-After
    if response is not None:
        response.data = framework_problem(error, status=HTTPStatus(response.status_code))
        response.content_type = CONTENT_TYPE
    return response


def foreseen(error: Exception) -> Exception:
    """Tell in words what a constraint or a row's own check refuses; other errors stay.

    What is unique is asked before it is written, so only somebody who writes the same at the same
    moment gets here. Another broken constraint is a bug and stays one.
    """
    cause = error.__cause__ if isinstance(error, IntegrityError) else None
    if getattr(cause, "sqlstate", "") == "23505" or "UNIQUE" in getattr(
        cause, "sqlite_errorname", ""
    ):
        return Taken("somebody else wrote the same at the same moment; nothing was done, ask again")
    if isinstance(error, DataError):
        return Unstorable(f"a name or value that the database cannot hold: {error}".splitlines()[0])
    if isinstance(error, ValidationError):  # of a row's own check, which asks once more
        return exceptions.ValidationError(as_serializer_error(error))
    return error


def _database_away() -> Response:
    """Say that nothing was done and when to ask again: the database is away, or busy."""
    document = problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        code="database_away",
        detail="the database does not answer; nothing was done, ask again",
    )
    return Response(
        document,
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        content_type=CONTENT_TYPE,
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def known_problem(error: Exception) -> tuple[HTTPStatus, str] | None:
    """Status and code of a domain error, or None for any other error."""
    return next((PROBLEMS[base] for base in type(error).__mro__ if base in PROBLEMS), None)


def framework_problem(error: Exception, *, status: HTTPStatus) -> dict[str, Any]:
    """The problem document of an error that Django or the REST framework raised."""
    if isinstance(error, exceptions.ValidationError):
        errors = list(field_errors(error.get_full_details()))
        detail = "; ".join(f"{item['field'] or 'body'}: {item['reason']}" for item in errors)
        return problem(status, code="invalid", detail=detail, errors=errors)
    if isinstance(error, Http404 | PermissionDenied):
        code = "not_found" if isinstance(error, Http404) else "permission_denied"
        return problem(status, code=code, detail=str(error) or status.description)
    details = error.get_full_details()  # type: ignore[attr-defined]
    return problem(status, code=details["code"], detail=details["message"])


def problem(
    status: HTTPStatus, *, code: str, detail: str, errors: list[dict[str, str]] | None = None
) -> dict[str, Any]:
    """One RFC 9457 document with the product's own members `code` and `errors`."""
    document: dict[str, Any] = {
        "type": f"urn:coalmine:problem:{code}",
        "title": status.phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
    }
    if errors:
        document["errors"] = errors
    return document


def field_errors(details: Any, *, path: str = "") -> Iterator[dict[str, str]]:
    """Flatten nested validation details to one entry per field, such as `records[3].time`."""
    if isinstance(details, Mapping) and set(details) == {"message", "code"}:
        yield {"field": path, "code": str(details["code"]), "reason": str(details["message"])}
    elif isinstance(details, Mapping):
        for key, value in details.items():
            name = "" if key == "non_field_errors" else str(key)
            yield from field_errors(value, path=".".join(filter(None, (path, name))))
    else:
        for position, value in enumerate(details):
            is_leaf = isinstance(value, Mapping) and set(value) == {"message", "code"}
            yield from field_errors(value, path=path if is_leaf else f"{path}[{position}]")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A problem document below /api/, the ordinary page elsewhere."""
    if not request.path.startswith("/api/"):
        return defaults.page_not_found(request, exception)
    document = problem(
        HTTPStatus.NOT_FOUND,
        code="not_found",
        detail=f"{request.path} does not exist; /api/schema/ lists what does",
    )
    return JsonResponse(document, status=404, content_type=CONTENT_TYPE)


def server_error(request: HttpRequest) -> HttpResponse:
    """A problem document below /api/, without what went wrong: that is in the log."""
    if not request.path.startswith("/api/"):
        return defaults.server_error(request)
    document = problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        code="internal_error",
        detail="the request failed inside Coalmine; its log says why",
    )
    return JsonResponse(document, status=500, content_type=CONTENT_TYPE)
