"""How long lists are handed out: by cursor, so that rows that arrive meanwhile shift nothing."""

from rest_framework import pagination


class CursorPagination(pagination.CursorPagination):
    ordering = "-pk"
    page_size_query_param = "page_size"
    max_page_size = 1000
