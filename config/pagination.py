"""How long lists are handed out: by cursor, so that rows that arrive meanwhile shift nothing."""

from rest_framework import pagination
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

#: Python reads no number of thousands of digits, and nobody means one.
MOST_DIGITS = 12


class CursorPagination(pagination.CursorPagination):
    ordering = "-pk"
    page_size_query_param = "page_size"
    max_page_size = 1000

    def get_page_size(self, request: Request) -> int | None:
        """The asked size; one out of range is refused, since a shorter page looks like all."""
        asked = request.query_params.get(self.page_size_query_param)
        if asked is None:
            return self.page_size
        is_whole = asked.isascii() and asked.isdigit() and len(asked) < MOST_DIGITS
        if not (is_whole and 1 <= int(asked) <= self.max_page_size):
            raise ValidationError(
                {"page_size": f"{asked!r} is not a whole number from 1 to {self.max_page_size}"}
            )
        return int(asked)
