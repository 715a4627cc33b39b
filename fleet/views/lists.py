"""What the pages with lists share: filters that refuse unknown names, one page and the next."""

from typing import Any, TypeVar

from django import forms
from django.db.models import Model, QuerySet
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

PAGE_SIZE = 50
Row = TypeVar("Row", bound=Model)


class FilterForm(forms.Form):
    """What a list is asked for in the address; a name that is none of the fields is refused.

    A filter that is misspelt would otherwise be taken as none, and none shows everything.
    """

    def clean(self) -> dict[str, Any]:
        unknown = sorted(set(self.data) - set(self.fields))
        if unknown:
            raise forms.ValidationError(
                _("%(names)s: unknown; known: %(known)s"),
                params={"names": ", ".join(unknown), "known": ", ".join(self.fields)},
            )
        return super().clean() or {}


def first_page(chosen: QuerySet[Row], query: QueryDict, *, status: str) -> tuple[list[Row], str]:
    """Return the first rows, and the address of those before them; empty where these are all.

    `status` is what a page without a query shows, so that going on does not show more.
    """
    rows = list(chosen[: PAGE_SIZE + 1])
    if len(rows) <= PAGE_SIZE:
        return rows, ""
    onward = query.copy()
    onward.setdefault("status", status)
    onward["before"] = str(rows[PAGE_SIZE - 1].pk)
    return rows[:PAGE_SIZE], f"?{onward.urlencode()}"
