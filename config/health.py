"""Answers for load balancers: is the process alive, and can it do its work?"""

from django.db import connection
from django.db.utils import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from config import pulse


@require_safe
def alive(request: HttpRequest) -> JsonResponse:
    """The process answers; nothing else is asked."""
    return JsonResponse({"status": "alive"})


@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """The database answers. The broker is left out: without it the product is slow, not down."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return JsonResponse({"status": "unready", "database": type(error).__name__}, status=503)
    return JsonResponse({"status": "ready", "database": connection.vendor})


@require_safe
def deciding(request: HttpRequest) -> JsonResponse:
    """Whether decisions are being made: red when no worker has done anything for two minutes.

    Apart from `readyz`: without workers the pages have to stay, since a halt needs no worker.
    """
    try:
        beat, stalled = pulse.last_beat(), pulse.stalled_since(wall=timezone.now())
    except DatabaseError as error:
        return JsonResponse({"status": "unknown", "database": type(error).__name__}, status=503)
    status = "no worker yet" if beat is None else "stalled" if stalled else "deciding"
    return JsonResponse(
        {"status": status, "last_beat": beat}, status=200 if status == "deciding" else 503
    )
