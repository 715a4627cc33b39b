"""Which ticket systems there are, read from the environment; a mistake stops the start."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence

from config import environment
from fleet.messages import key_of

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def pairs(variable: str, members: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The variable's `name=value` members; what is behind the sign may be empty."""
    for part in members:
        name, mark, value = part.partition("=")
        if not (mark and NAME.fullmatch(name)):
            # It may be a secret whose name was forgotten, so none of it is shown.
            raise environment.refused(
                variable,
                seen="a member without a plain name",
                accepted="name=value, separated by commas; names in a-z, 0-9 and -",
            )
        yield name, value


def systems(members: Iterable[str]) -> dict[str, str]:
    """Where each ticket system takes messages; empty where it only sends them."""
    return dict(pairs("TICKET_SYSTEMS", members))


def keys(members: Iterable[str], *, names: Iterable[str]) -> dict[str, bytes]:
    """The key of each ticket system: none without one, and no key of a system unknown."""
    found: dict[str, bytes] = {}
    for name, secret in pairs("TICKET_SECRETS", members):
        try:
            found[name] = key_of(secret)
        except ValueError as error:
            raise environment.refused("TICKET_SECRETS", seen=name, accepted=str(error)) from None
    if set(found) != set(names):
        wrong = ", ".join(sorted(set(found) ^ set(names)))
        raise environment.refused(
            "TICKET_SECRETS", seen=wrong, accepted="one secret per name of TICKET_SYSTEMS"
        )
    return found


def ports(found: Sequence[str]) -> frozenset[int]:
    """The ports that messages may go to."""
    if not all(port.isascii() and port.isdigit() and 0 < int(port) < 65536 for port in found):
        raise environment.refused(
            "WEBHOOK_PORTS", seen=",".join(found), accepted="port numbers, separated by commas"
        )
    return frozenset(int(port) for port in found)


def networks(found: Sequence[str]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """The networks that are not public and may be called all the same."""
    try:
        return [ipaddress.ip_network(text) for text in found]
    except ValueError as error:
        raise environment.refused(
            "WEBHOOK_NETWORKS", seen=",".join(found), accepted=f"networks as 10.0.0.0/8 ({error})"
        ) from None
