"""Where messages may go: the checked address, and no other."""

import http.server
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fleet.adapters.webhook import Rules, checked_target, post
from fleet.errors import AddressRefused

PUBLIC = "93.184.215.14"
RULES = Rules(["tickets.example.org"], [443])
URL = "https://tickets.example.org/hook"


def resolving(*answers: str):
    """A resolver that answers each time with the next address, the last one for ever."""
    left = list(answers)

    def resolve(host: str, port: int, **_):
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    return resolve


def test_the_connection_goes_to_the_address_that_was_checked():
    resolve = resolving(PUBLIC, "127.0.0.1")  # S27: public when it is checked, then another

    target = checked_target(URL, rules=RULES, resolve=resolve)

    assert (target.address, target.host, target.port, target.is_tls) == (
        PUBLIC,
        "tickets.example.org",
        443,
        True,
    )


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.8",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "100.64.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:169.254.169.254",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
    ],
)
def test_a_name_that_leads_inside_is_refused(address: str):
    with pytest.raises(AddressRefused, match="in no network that may be called"):
        checked_target(URL, rules=RULES, resolve=resolving(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://tickets.example.org/hook",
        "ftp://tickets.example.org/",
        "file:///etc/passwd",
        "gopher://tickets.example.org/",
        "https://evil.example.org/hook",
        "https://user@tickets.example.org/hook",
        "https://tickets.example.org@evil.example.org/",
        "https://tickets.example.org:22/",
        "https://tickets.example.org:99999/",
        "https://[::ffff:169.254.169.254]/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://127.1/",
        "https://tickets.example.org/a b",
        "https://tickets.example.org/\r\nHost: evil",
        "//tickets.example.org/",
        "https://[::1",
        "",
    ],
)
def test_an_address_outside_the_rules_is_refused(url: str):
    with pytest.raises(AddressRefused):
        checked_target(url, rules=RULES, resolve=resolving(PUBLIC))


def test_one_address_inside_spoils_a_name():
    def both(host: str, port: int, **_):
        return [(2, 1, 6, "", (PUBLIC, port)), (2, 1, 6, "", ("10.0.0.8", port))]

    with pytest.raises(AddressRefused, match=r"10\.0\.0\.8"):
        checked_target(URL, rules=RULES, resolve=both)


def test_a_network_that_was_named_may_be_called_also_without_tls():
    rules = Rules(["tickets"], [80, 443], [ipaddress.ip_network("10.0.0.0/8")])

    target = checked_target("http://tickets/hook?a=1", rules=rules, resolve=resolving("10.0.0.8"))

    assert (target.address, target.port, target.path) == ("10.0.0.8", 80, "/hook?a=1")
    with pytest.raises(AddressRefused, match="only https"):
        checked_target("http://tickets/", rules=rules, resolve=resolving(PUBLIC))


# --- posting --------------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as its server says, and keeps what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Host"], body))
        status, headers, answer = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.seen, found.answer = [], (200, {}, b'{"ticket": "T-1"}')
    thread = threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


def send(server):
    port = server.server_address[1]
    rules = Rules(["tickets"], [port], [ipaddress.ip_network("127.0.0.0/8")])
    target = checked_target(
        f"http://tickets:{port}/hook", rules=rules, resolve=resolving("127.0.0.1")
    )
    return post(target, body=b"{}", headers={"Content-Type": "application/json"})


def test_a_message_is_posted_under_the_hosts_own_name(server):
    answer = send(server)

    assert (answer.is_taken, answer.document) == (True, {"ticket": "T-1"})
    assert server.seen == [("/hook", f"tickets:{server.server_address[1]}", b"{}")]


def test_no_redirect_is_followed(server):
    server.answer = (307, {"Location": "http://127.0.0.1:1/"}, b"")

    answer = send(server)

    assert (answer.status, answer.is_taken) == (307, False)
    assert len(server.seen) == 1


def test_an_answer_is_no_more_than_a_hint(server):
    server.answer = (503, {"Retry-After": "120"}, b"[" * 100_000)

    answer = send(server)

    assert (answer.status, answer.document, answer.retry_after) == (503, None, 120.0)


def test_who_answers_no_http_is_away():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def answer_nonsense() -> None:
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"secret nonsense\r\n\r\n")
        connection.close()

    thread = threading.Thread(target=answer_nonsense, daemon=True)
    thread.start()
    rules = Rules(["tickets"], [port], [ipaddress.ip_network("127.0.0.0/8")])
    target = checked_target(f"http://tickets:{port}/", rules=rules, resolve=resolving("127.0.0.1"))

    with pytest.raises(OSError, match="no HTTP answer") as error:
        post(target, body=b"{}", headers={})

    assert "secret" not in str(error.value)
    listener.close()


def test_an_answer_that_drips_in_is_cut_off(monkeypatch):
    monkeypatch.setattr("fleet.adapters.webhook.SECONDS_IN_ALL", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    over = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b"x")

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    rules = Rules(["tickets"], [port], [ipaddress.ip_network("127.0.0.0/8")])
    target = checked_target(f"http://tickets:{port}/", rules=rules, resolve=resolving("127.0.0.1"))

    begun = time.monotonic()
    answer = post(target, body=b"{}", headers={})

    assert time.monotonic() - begun < 3.0
    assert (answer.status, answer.document) == (200, None)
    over.set()
    dripping.join(5.0)
    listener.close()
