"""What every endpoint keeps: unknown names in a body or an address are refused, never dropped."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, NoReturn

from django.contrib.auth.models import User
from django.utils.dateparse import parse_datetime
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, NotAuthenticated, ValidationError
from rest_framework.permissions import BasePermission, DjangoModelPermissions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from fleet import clock
from fleet.clock import FIRST_YEAR, LAST_YEAR, validate_year

MOST_NAMES = 1000  # machines on one page


def suggestion(name: str, accepted: Collection[str]) -> str:
    """What would have been accepted instead of `name`.

    Examples
    --------
    >>> suggestion("rakc", ["rack", "site"])
    "did you mean 'rack'? accepted: rack, site"
    """
    close = difflib.get_close_matches(name, accepted, n=1, cutoff=0.6)
    listing = f"accepted: {', '.join(sorted(accepted)) or 'none'}"
    return f"did you mean {close[0]!r}? {listing}" if close else listing


class ChoiceField(serializers.ChoiceField):
    """A choice that names the words it knows when it refuses one."""

    default_error_messages: ClassVar = {"invalid_choice": '"{input}" is not known; {accepted}'}

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        known = [str(choice) for choice in self.choices if choice not in ("", None)]
        said = str(kwargs.pop("input", ""))[:100]
        super().fail(key, input=said, accepted=suggestion(said, known), **kwargs)


class StrictFields:
    """Refuses unknown and read-only fields of a body by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            refused = dict(self._refused(data))
            if refused:
                raise ValidationError(refused)
        return super().to_internal_value(data)  # type: ignore[misc]

    def _refused(self, data: Mapping[str, Any]) -> Iterable[tuple[str, list[ErrorDetail]]]:
        fields = self.fields  # type: ignore[attr-defined]
        writable = [name for name, field in fields.items() if not field.read_only]
        for name in data:
            if name not in fields:
                text = f"unknown field; {suggestion(name, writable)}"
                yield name, [ErrorDetail(text, code="unknown_field")]
            elif fields[name].read_only:
                text = f"read-only; accepted: {', '.join(sorted(writable))}"
                yield name, [ErrorDetail(text, code="read_only")]


class StrictSerializer(StrictFields, serializers.Serializer):
    """A plain serializer that refuses what it does not know."""


class StrictModelSerializer(StrictFields, serializers.ModelSerializer):
    """A model serializer that refuses what it does not know."""

    serializer_choice_field = ChoiceField


class ZonedDateTimeField(serializers.DateTimeField):
    """RFC 3339 with a zone; a time without one is nobody's.

    Years in which no machine stood are refused: a week before the first of all days does not exist.
    """

    default_error_messages: ClassVar = {
        "no_zone": "{value!r} has no zone; write 2026-01-31T12:00:00Z",
        "no_such_year": "{value!r} is not in the years from {first} to {last}",
    }

    def to_internal_value(self, value: Any) -> datetime:
        if isinstance(value, str) and is_naive(value):
            self.fail("no_zone", value=value)
        time: datetime = super().to_internal_value(value)
        if not FIRST_YEAR <= time.year <= LAST_YEAR:
            self.fail("no_such_year", value=value, first=FIRST_YEAR, last=LAST_YEAR)
        return time


class QueryTimeField(ZonedDateTimeField):
    """The same in an address, where an unescaped + reads as a blank."""

    def to_internal_value(self, value: Any) -> datetime:
        return super().to_internal_value(str(value).replace(" ", "+"))


class DayField(serializers.DateField):
    """A day of the years that may be asked about."""

    def __init__(self, **words: Any) -> None:
        super().__init__(validators=[validate_year], **words)


def is_naive(text: str) -> bool:
    """True for a time that can be read but carries no zone."""
    try:
        parsed = parse_datetime(text)
    except ValueError:
        return False  # well formed, impossible date: another error
    return parsed is not None and parsed.tzinfo is None


class ModelPermissions(DjangoModelPermissions):
    """Reading needs the model's view permission, writing its add or change permission."""

    perms_map: ClassVar = {
        **DjangoModelPermissions.perms_map,
        "GET": ["%(app_label)s.view_%(model_name)s"],
        "HEAD": ["%(app_label)s.view_%(model_name)s"],
        "OPTIONS": [],
    }

    def _queryset(self, view: Any) -> Any:
        return view.queryset  # only its model counts here, not the rows of this request


def needs(permission: str) -> type[BasePermission]:
    """A permission class that asks for one named permission."""

    class Needs(BasePermission):
        message = f"this needs the permission {permission}"

        def has_permission(self, request: Request, view: Any) -> bool:
            return bool(request.user and request.user.has_perm(permission))

    return Needs


def person(request: Request) -> User:
    """Who asks: somebody, once the permissions have been checked."""
    if not isinstance(request.user, User):
        raise NotAuthenticated
    return request.user


def by_whom(request: Request) -> dict[str, Any]:
    """Who acts and when, as services take it."""
    user = person(request)
    return {"actor": user.get_username(), "user": user, "now": clock.now()}


class StrictViewSet(GenericViewSet):
    """A view set that refuses unknown names in the query string."""

    permission_classes: ClassVar = [ModelPermissions]
    filterset_class: type[FilterSet] | None = None
    #: Names that an action understands beyond its filters and its pages.
    query_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        accepted = self.accepted_names()
        refused = {
            name: ErrorDetail(
                f"unknown filter; {suggestion(name, accepted)}", code="unknown_filter"
            )
            for name in request.query_params
            if name not in accepted
        }
        # An empty filter would be taken as none, and none selects everything.
        refused |= {
            name: ErrorDetail("empty; leave the filter out to select all", code="empty_filter")
            for name, value in request.query_params.items()
            if name in accepted and not str(value).strip()
        }
        if refused:
            raise ValidationError(refused)

    def accepted_names(self) -> set[str]:
        names = set(self.query_names.get(self.action, ()))
        if self.action == "list" and self.filterset_class is not None:
            names |= set(self.filterset_class.base_filters)
        if self.action == "list":
            names |= {"cursor", "page_size"}
        return names

    def asked_time(self, *, default: datetime) -> datetime:
        """The query's `as_of`, an RFC 3339 time with zone, or the default."""
        text = self.request.query_params.get("as_of")
        if text is None:
            return default
        try:
            return QueryTimeField().run_validation(text)
        except ValidationError as error:
            raise ValidationError({"as_of": error.detail}) from error


class PagedQuerySerializer(StrictSerializer):
    """The query of a list that goes by machine names: where it goes on, and how far."""

    after = serializers.CharField(
        default="", help_text="name of the last machine seen; as `next` has it"
    )
    page_size = serializers.IntegerField(default=100, min_value=1, max_value=MOST_NAMES)


def query_of(request: Request, form: type[StrictSerializer]) -> dict[str, Any]:
    """The query of a request as one form understands it; unknown names are refused."""
    query = form(data=request.query_params.dict())
    query.is_valid(raise_exception=True)
    return dict(query.validated_data)


def body_of(request: Request, form: type[serializers.Serializer]) -> dict[str, Any]:
    """The body of a request as one form understands it."""
    body = form(data=request.data)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)


def answer_by_name(
    request: Request,
    find: Callable[..., Iterable[Any]],
    *,
    asks: type[PagedQuerySerializer],
    answers: type[StrictSerializer],
    name: Callable[[Any], str],
) -> Response:
    """One page of what `find` yields for the query, in order of machine."""
    asked = query_of(request, asks)
    size = asked.pop("page_size")
    page = page_by_name(request, find(**asked, limit=size + 1), size=size, name=name)
    return Response(answers(page).data)


def page_by_name(
    request: Request, rows: Iterable[Any], *, size: int, name: Callable[[Any], str]
) -> dict[str, Any]:
    """The rows of the first `size` machines, and the address of what comes after them.

    `rows` come in order of machine; one machine more than `size` tells that there is more, and
    no row beyond it is read.
    """
    taken: list[Any] = []
    names: list[str] = []
    for row in rows:
        if not names or name(row) != names[-1]:
            names.append(name(row))
        if len(names) > size:
            query = request.query_params.copy()
            query["after"] = names[size - 1]
            address = request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
            return {"next": address, "results": taken}
        taken.append(row)
    return {"next": None, "results": taken}
