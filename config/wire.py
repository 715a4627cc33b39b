"""What the API reads and writes, made safe for any bytes: JSON in, JSON out."""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer

#: Levels of lists and objects in a body; the deepest that anything here has is eight.
MOST_LEVELS = 64


class BoundedJSONParser(JSONParser):
    """Refuses a body whose nesting would exhaust whoever walks it next."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            body = super().parse(stream, media_type, parser_context)
        except RecursionError as error:
            raise too_deep() from error
        if levels_of(body) > MOST_LEVELS:
            raise too_deep()
        return body


def too_deep() -> ParseError:
    return ParseError(f"lists and objects are nested in each other beyond {MOST_LEVELS} levels")


def levels_of(body: Any) -> int:
    """Count the levels of lists and objects, without recursion; never far beyond what is accepted.

    Examples
    --------
    >>> levels_of({"a": [1, {}]})
    3
    """
    levels, present = 0, [body]
    while present and levels <= MOST_LEVELS:
        inside: list[Any] = []
        nested = [value for value in present if isinstance(value, dict | list)]
        for value in nested:
            inside.extend(value.values() if isinstance(value, dict) else value)
        levels += bool(nested)
        present = inside
    return levels


class AnyTextJSONRenderer(JSONRenderer):
    """Can repeat what it was told, also halves of surrogate pairs, which UTF-8 cannot carry."""

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        try:
            return bytes(super().render(data, accepted_media_type, renderer_context))
        except UnicodeEncodeError:
            return bytes(_Escaped().render(data, accepted_media_type, renderer_context))


class _Escaped(JSONRenderer):
    ensure_ascii = True
