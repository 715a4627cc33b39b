"""Signed messages to and from other systems, as the Standard Webhooks rules have them. Pure.

The signature is HMAC-SHA256 over the message's identifier, its time and its body, so none of them
can be changed, and an old message cannot be sent again as a new one.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from fleet.errors import SignatureRefused

#: How far the sender's clock may be from ours.
WINDOW = timedelta(minutes=5)
MOST_ID_CHARACTERS = 200
SECRET_PREFIX = "whsec_"
LEAST_SECRET_BYTES = 24


def key_of(secret: str) -> bytes:
    """Return the key of a secret as it is written in settings: `whsec_` and base64.

    Raises
    ------
    ValueError
        If it is not written so, or is too short to keep anything secret.
    """
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError(f"a secret begins with {SECRET_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"what follows {SECRET_PREFIX} has to be base64") from None
    if len(key) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret has at least {LEAST_SECRET_BYTES} bytes, this has {len(key)}")
    return key


def signature(key: bytes, *, message_id: str, at: datetime, body: bytes) -> str:
    """Sign a message.

    Examples
    --------
    >>> at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    >>> signature(b"k" * 24, message_id="m1", at=at, body=b"{}")
    'v1,UYcoiFbB5JxFSQXlceO1fHH6dkuHFG1m+ZN8gVICEeY='
    """
    signed = b".".join((message_id.encode(), b"%d" % int(at.timestamp()), body))
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def signed_headers(key: bytes, *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that let a receiver check a message."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": signature(key, message_id=message_id, at=at, body=body),
    }


def checked_id(headers: Mapping[str, str], *, key: bytes, body: bytes, now: datetime) -> str:
    """Return the identifier of a message whose signature holds at `now`, by the wall.

    Raises
    ------
    SignatureRefused
        If a header is missing, the time is outside the window, or no signature holds.
    """
    message_id = headers.get("webhook-id", "")
    stamp = headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "")
    if not (message_id and stamp and given):
        raise SignatureRefused(
            "the headers webhook-id, webhook-timestamp and webhook-signature are needed"
        )
    if len(message_id) > MOST_ID_CHARACTERS or not message_id.isprintable():
        raise SignatureRefused(f"webhook-id has at most {MOST_ID_CHARACTERS} printable characters")
    at = _time(stamp)
    if abs(now - at) > WINDOW:
        raise SignatureRefused(
            f"webhook-timestamp {stamp} is more than {WINDOW.total_seconds() / 60:.0f} minutes "
            "from the time here"
        )
    own = signature(key, message_id=message_id, at=at, body=body).encode()
    if not any(hmac.compare_digest(own, one.encode()) for one in given.split(" ")):
        raise SignatureRefused("no signature of the message holds")
    return message_id


def _time(stamp: str) -> datetime:
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 10):
        raise SignatureRefused(f"webhook-timestamp {stamp[:20]!r} is not a time in seconds")
    return datetime.fromtimestamp(int(stamp), tz=UTC)
