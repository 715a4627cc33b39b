"""The pages about machines: what is broken, what is being done, what comes back.

Pages parse, call and answer; every number comes from a read, every change from `fleet.services`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.contrib import admin
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render

from fleet import clock

View = Callable[..., HttpResponse]
_View = TypeVar("_View", bound=Callable[..., HttpResponseBase])


def needs(*permissions: str) -> Callable[[_View], _View]:
    """Return what lets in who is logged in and has all these permissions."""

    def guarded(view: _View) -> _View:
        return login_required(permission_required(permissions, raise_exception=True)(view))

    return guarded


fleet_page = needs("fleet.view_machine")


def page(
    request: HttpRequest, template: str, context: Mapping[str, Any], *, status: int = 200
) -> HttpResponse:
    """Render a page in the admin's frame."""
    return render(request, template, {**admin.site.each_context(request), **context}, status=status)


def person(request: HttpRequest) -> User:
    """Who asks: somebody, once the permissions have been checked."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def by_whom(request: HttpRequest) -> dict[str, Any]:
    """Who acts and when, as services take it."""
    user = person(request)
    return {"actor": user.get_username(), "user": user, "now": clock.now()}
