"""How large a form with files may be: a larger one is refused before any of it is read."""

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadhandler import FileUploadHandler

#: What a form holds beside its files.
REST_BYTES = 2**20


def most_bytes() -> int:
    """The largest form with files that is read."""
    return int(settings.EVIDENCE_MOST_BYTES) + REST_BYTES


class BoundedUpload(FileUploadHandler):
    """Stands before the handlers that write; lets every form through that is not too large."""

    def handle_raw_input(
        self,
        input_data: Any,
        META: dict[str, Any],  # noqa: N803 - as the framework calls it
        content_length: int,
        boundary: str,
        encoding: str | None = None,
    ) -> None:
        if content_length > most_bytes():
            raise RequestDataTooBig(
                f"the form has {content_length} bytes, at most {most_bytes()} are read"
            )

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        return raw_data

    def file_complete(self, file_size: int) -> None:
        return None
