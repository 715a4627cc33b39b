"""A package as HTML, JSON and CSV: the same rows, the same bytes for the same package."""

import csv
import io
import json
from typing import Any

from django.template.loader import render_to_string

from rollouts.models import SupplierPackage
from rollouts.supplier.allowed import COLUMNS, WITHHELD, Row, utc
from rollouts.supplier.gathering import Package

FORMAT = "coalmine-supplier-package/1"
MEDIA_TYPES = {
    SupplierPackage.Format.HTML: "text/html; charset=utf-8",
    SupplierPackage.Format.JSON: "application/json",
    SupplierPackage.Format.CSV: "text/csv; charset=utf-8",
}
#: A spreadsheet takes a cell that begins so for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def render(package: Package, *, form: str) -> bytes:
    """Return the file that is handed out."""
    match form:
        case SupplierPackage.Format.JSON:
            return _as_json(package)
        case SupplierPackage.Format.CSV:
            return _as_csv(package)
        case SupplierPackage.Format.HTML:
            return _as_html(package)
    raise ValueError(f"a package is html, json or csv: got {form!r}")


def as_document(package: Package) -> dict[str, Any]:
    """The package as one object, with nothing in it that its rows and summaries do not hold."""
    return {
        "format": FORMAT,
        "case": package.case,
        "made_at": utc(package.made_at),
        "times": "UTC",
        "machines": package.machines,
        "withheld_values_read": WITHHELD,
        "left_out": dict(package.left_out),
        "incidents": [dict(summary) for summary in package.incidents],
        "timeline": [row.cells() for row in package.rows],
    }


def _as_json(package: Package) -> bytes:
    document = as_document(package)
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def _as_csv(package: Package) -> bytes:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\r\n")
    table.writerow(COLUMNS)
    for row in package.rows:
        cells = row.cells()
        table.writerow([_cell(cells.get(column, "")) for column in COLUMNS])
    return out.getvalue().encode()


def _cell(value: str | float) -> str | float:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers.

    Examples
    --------
    >>> _cell("=1+1"), _cell(-0.5)
    ("'=1+1", -0.5)
    """
    if isinstance(value, str) and value.lstrip().startswith(FORMULA):
        return f"'{value}"
    return value


def _as_html(package: Package) -> bytes:
    lines = [
        (utc(row.at), row.machine, row.incident, row.source, _words(row)) for row in package.rows
    ]
    context = {
        "package": package,
        "made_at": utc(package.made_at),
        "lines": lines,
        "withheld": WITHHELD,
    }
    return render_to_string("rollouts/supplier_package.html", context).encode()


def _words(row: Row) -> list[tuple[str, str | int | float]]:
    return [(name.replace("_", " "), value) for name, value in row.told]
