"""Answers for load balancers: is the process alive, and can it do its work?"""

from django.db import connection
from django.db.utils import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe


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
