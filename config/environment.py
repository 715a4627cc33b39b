"""Read settings from environment variables; a value that is not understood stops the start."""

from collections.abc import Collection

import environ
from django.core.exceptions import ImproperlyConfigured

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})

env = environ.Env()


def text(name: str, *, default: str = "") -> str:
    """The variable's text; an empty value counts as absent."""
    return env.str(name, default="").strip() or default


def flag(name: str, *, default: bool) -> bool:
    """A yes or no. A misspelt one is an error: it must not become a silent no."""
    value = text(name).lower()
    if not value:
        return default
    if value in TRUE | FALSE:
        return value in TRUE
    raise refused(name, seen=value, accepted="true or false")


def whole(name: str, *, default: int, low: int, high: int) -> int:
    """A whole number between `low` and `high`, both included."""
    value = text(name, default=str(default))
    if value.isascii() and value.removeprefix("-").isdigit() and low <= int(value) <= high:
        return int(value)
    raise refused(name, seen=value, accepted=f"a whole number from {low} to {high}")


def choice(name: str, *, default: str, choices: Collection[str]) -> str:
    value = text(name, default=default)
    if value in choices:
        return value
    raise refused(name, seen=value, accepted="one of " + ", ".join(sorted(choices)))


def items(name: str, *, default: Collection[str] = ()) -> list[str]:
    """A comma-separated list without empty members."""
    return [part.strip() for part in text(name).split(",") if part.strip()] or list(default)


def url(name: str, *, default: str = "", schemes: Collection[str]) -> str:
    """An address with one of these schemes, or nothing where the default is nothing."""
    value = text(name, default=default)
    scheme, mark, _ = value.partition("://")
    if not value or (mark and scheme in schemes):
        return value
    raise refused(
        name,
        seen=value,
        accepted="an address starting with "
        + ", ".join(f"{scheme}://" for scheme in sorted(schemes)),
    )


def dotted(name: str, *, default: str) -> str:
    """The dotted path of a class: at least a module and a name."""
    value = text(name, default=default)
    parts = value.split(".")
    if len(parts) > 1 and all(part.isidentifier() for part in parts):
        return value
    raise refused(name, seen=value, accepted="a dotted path such as package.module.Class")


def dotted_or_none(name: str, *, default: str) -> str:
    """The same, or nothing where the word is `none`: an empty value counts as absent."""
    return "" if text(name, default=default).lower() == "none" else dotted(name, default=default)


def refused(name: str, *, seen: str, accepted: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{name}={seen!r} is not understood; accepted: {accepted}")
