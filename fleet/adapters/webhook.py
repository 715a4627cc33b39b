"""Posts a message to an address of another system, and to no other.

The host's name is resolved once, every address it has is checked, and the connection goes to the
checked address itself: a name that resolves otherwise a moment later reaches nothing else. No
redirect is followed, no proxy asked, and what the other side answers is never part of an error.
"""

import http.client
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fleet.errors import AddressRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[..., Sequence[tuple[Any, ...]]]

SECONDS_PER_STEP = 5.0
SECONDS_IN_ALL = 10.0
MOST_ANSWER_BYTES = 65_536


@dataclass(frozen=True)
class Rules:
    """Where messages may go: these hosts, on these ports; and which networks that are not public.

    Plain HTTP is for those networks only.
    """

    hosts: Collection[str]
    ports: Collection[int]
    networks: Sequence[Network] = ()


@dataclass(frozen=True)
class Target:
    """An address that was checked: the name for the certificate, the number to connect to."""

    is_tls: bool
    host: str
    address: str
    port: int
    path: str


@dataclass(frozen=True)
class Answer:
    """What the other side answered; `retry_after` in seconds where it said so."""

    status: int
    document: Any = None
    retry_after: float | None = None

    @property
    def is_taken(self) -> bool:
        return 200 <= self.status < 300


def checked_target(url: str, *, rules: Rules, resolve: Resolve = socket.getaddrinfo) -> Target:
    """Resolve an address once and return where to connect to.

    Raises
    ------
    AddressRefused
        If anything about it is outside the rules.
    OSError
        If the name does not resolve now.
    """
    scheme, host, port, path = _parts(url, rules=rules)
    answers = resolve(host, port, type=socket.SOCK_STREAM)
    found = [_plain(ipaddress.ip_address(str(row[4][0]).partition("%")[0])) for row in answers]
    if not found:
        raise AddressRefused(f"{host} has no address")
    for address in found:
        _check_address(address, host=host, scheme=scheme, networks=rules.networks)
    return Target(scheme == "https", host, str(found[0]), port, path)


def _parts(url: str, *, rules: Rules) -> tuple[str, str, int, str]:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower().rstrip("."), parts.port
    except ValueError:
        raise AddressRefused("the address cannot be read") from None
    if parts.scheme not in ("https", "http"):
        raise AddressRefused(f"scheme {parts.scheme!r} is not called; accepted: https, http")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise AddressRefused("an address with a user in it is not called")
    if host not in {name.lower().rstrip(".") for name in rules.hosts}:
        raise AddressRefused(f"host {host!r} is not on the list of hosts that may be called")
    number = port if port is not None else (443 if parts.scheme == "https" else 80)
    if number not in rules.ports:
        raise AddressRefused(
            f"port {number} is not called; accepted: {', '.join(map(str, sorted(rules.ports)))}"
        )
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    if not (path.isascii() and path.isprintable() and " " not in path):
        raise AddressRefused("the path of the address holds blanks or characters to be escaped")
    return parts.scheme, host, number, path


def _plain(address: Address) -> Address:
    """An IPv4 address that is written as an IPv6 one is that IPv4 address."""
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _check_address(
    address: Address, *, host: str, scheme: str, networks: Sequence[Network]
) -> None:
    if any(address.version == network.version and address in network for network in networks):
        return
    if not address.is_global or address.is_multicast:
        raise AddressRefused(f"{host} is at {address}, which is in no network that may be called")
    if scheme == "http":
        raise AddressRefused(f"{host} is at {address}, a public address: only https is called")


def post(
    target: Target,
    *,
    body: bytes,
    headers: Mapping[str, str],
    context: ssl.SSLContext | None = None,
) -> Answer:
    """Post once, to the checked address; give up within some seconds.

    Raises
    ------
    OSError
        If no answer came. A message may have arrived all the same.
    """
    connection = _Pinned(target, context=context)
    deadline = threading.Timer(SECONDS_IN_ALL, connection.cut)
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("POST", target.path, body=body, headers=dict(headers))
        response = connection.getresponse()
        content = response.read(MOST_ANSWER_BYTES + 1)
        return Answer(
            response.status,
            _document(content),
            _seconds(response.getheader("Retry-After")),
        )
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP answer: {type(error).__name__}") from None
    finally:
        deadline.cancel()
        connection.close()


class _Pinned(http.client.HTTPConnection):
    """A connection to the checked address, with the certificate checked for the host's name."""

    def __init__(self, target: Target, *, context: ssl.SSLContext | None) -> None:
        super().__init__(target.host, target.port, timeout=SECONDS_PER_STEP)
        self.default_port = 443 if target.is_tls else 80  # which the Host header leaves out
        self._target = target
        self._context = context
        self._plain: socket.socket | None = None

    def connect(self) -> None:
        place = (self._target.address, self._target.port)
        plain = socket.create_connection(place, timeout=SECONDS_PER_STEP)
        self.sock = self._plain = plain
        if self._target.is_tls:
            context = self._context or ssl.create_default_context()
            try:
                self.sock = context.wrap_socket(plain, server_hostname=self._target.host)
                self._plain = self.sock
            except OSError:
                plain.close()
                raise

    def cut(self) -> None:
        """End a connection on which answers drip in: no step takes long, all of them do.

        The response may have taken the socket over, so it is remembered apart.
        """
        if self._plain is not None:
            with suppress(OSError):  # it has ended by itself
                self._plain.shutdown(socket.SHUT_RDWR)


def _document(content: bytes) -> Any:
    """The answer's JSON, or None: an answer is a hint, never trusted to be anything."""
    if len(content) > MOST_ANSWER_BYTES:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _seconds(text: str | None) -> float | None:
    if text and text.isascii() and text.isdigit() and len(text) < 7:
        return float(text)
    return None
