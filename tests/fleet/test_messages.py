"""Signed messages: what holds and what does not."""

from datetime import timedelta

import pytest

from fleet.errors import SignatureRefused
from fleet.messages import checked_id, key_of, signature, signed_headers
from tests.factories import NOW

KEY = b"k" * 32
BODY = b'{"state":"done"}'


def headers(**changed: str) -> dict[str, str]:
    own = signed_headers(KEY, message_id="m1", at=NOW, body=BODY)
    return own | {f"webhook-{name}": value for name, value in changed.items()}


def check(given: dict[str, str], *, body: bytes = BODY, now=NOW, key: bytes = KEY) -> str:
    return checked_id(given, key=key, body=body, now=now)


def test_the_signature_is_that_of_the_published_rules():
    # Standard Webhooks' own test vector: secret MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw.
    from datetime import UTC, datetime

    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    at = datetime.fromtimestamp(1614265330, tz=UTC)

    signed = signature(
        key, message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", at=at, body=b'{"test": 2432232314}'
    )

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_message_that_was_signed_is_taken():
    assert check(headers()) == "m1"
    assert check(headers(signature="v1,other " + headers()["webhook-signature"])) == "m1"


@pytest.mark.parametrize(
    "given",
    [
        headers(id="m2"),
        headers(timestamp=str(int(NOW.timestamp()) + 1)),
        headers(signature="v1,AAAA"),
        headers(signature="v1,é"),
        headers(signature=""),
        headers(id=""),
        headers(id="x" * 201),
        headers(id="a\nb"),
        headers(timestamp="soon"),
        headers(timestamp="9" * 30),
        {},
    ],
)
def test_a_message_that_was_changed_is_refused(given: dict[str, str]):
    with pytest.raises(SignatureRefused):
        check(given)


def test_another_body_or_another_key_is_refused():
    with pytest.raises(SignatureRefused):
        check(headers(), body=BODY + b" ")
    with pytest.raises(SignatureRefused):
        check(headers(), key=b"x" * 32)


@pytest.mark.parametrize("late", [timedelta(minutes=6), timedelta(minutes=-6), timedelta(days=3)])
def test_a_message_from_another_time_is_refused(late: timedelta):
    with pytest.raises(SignatureRefused, match="5 minutes"):
        check(headers(), now=NOW + late)


@pytest.mark.parametrize("secret", ["", "MfKQ9r8G", "whsec_", "whsec_c2hvcnQ=", "whsec_!!"])
def test_a_secret_that_keeps_nothing_secret_is_refused(secret: str):
    with pytest.raises(ValueError, match=r"secret|whsec_"):
        key_of(secret)
