"""Hands out evidence: always as a file to be saved, never as something a browser would open."""

from django.http import FileResponse

from fleet.models import Evidence
from fleet.services.evidence import open_evidence

_NOTHING_RUNS = "default-src 'none'; sandbox"


def attachment(evidence: Evidence) -> FileResponse:
    """Return the file of a record, as whoever brought it sent it."""
    response = FileResponse(
        open_evidence(evidence),
        as_attachment=True,
        filename=evidence.name,
        content_type="application/octet-stream",
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = _NOTHING_RUNS
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cache-Control"] = "private, no-store"
    return response
