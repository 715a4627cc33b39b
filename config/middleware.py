"""The content security policy of every page, and how pages show domain errors."""

from collections.abc import Callable
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.http import url_has_allowed_host_and_scheme

from config.api import DATABASE_AWAY, RETRY_AFTER_SECONDS, foreseen, known_problem

# The admin theme needs Alpine's evaluator and inline styles; scripts come from
# this host's files only, so a page cannot be made to run text that it shows.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


class ContentSecurityPolicy:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


class DomainProblems:
    """Pages tell a domain error in words, with the same status as the API; views never catch it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, DATABASE_AWAY):
            # Whoever is logged in cannot be asked for now, so the page does without its frame.
            return HttpResponse(
                render_to_string("database_away.html"),
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        error = foreseen(error)
        known = known_problem(error)
        if known is None:
            return None
        reasons = getattr(error, "reasons", [])
        context = {
            # Most errors with reasons are these and nothing else, and need not be told twice.
            "detail": "" if str(error) == "; ".join(reasons) else str(error),
            "reasons": reasons,
            "back": came_from(request),
        }
        return render(request, "problem.html", context, status=known[0])


def came_from(request: HttpRequest) -> str:
    """The page of this site that the request came from, else the home page."""
    address = request.headers.get("Referer", "")
    is_here = url_has_allowed_host_and_scheme(address, allowed_hosts={request.get_host()})
    return address if is_here else "/"
