"""Can the bundle go onto a machine, and can the machine go back: per image, before it starts."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet.firmware.reach import Image, may_step_down, obstacle, reaches
from fleet.firmware.versions import Order, compare, is_same

M = TypeVar("M", bound=Hashable)

#: How `fleet.selectors.versions_now` says that witnesses disagree.
_DISPUTED = "disputed"


@dataclass(frozen=True)
class Readiness(Generic[M]):
    """Who cannot take the bundle, who runs it already, and who takes it and cannot go back.

    Reasons name versions, never machines, so equal ones may be counted.
    """

    blocked: Mapping[M, str]
    current: frozenset[M]
    irreversible: Mapping[M, str]


def readiness(
    versions: Mapping[M, Mapping[str, str]],
    *,
    bundle: Sequence[Image],
    images: Collection[Image],
    allow_unordered: bool = False,
) -> Readiness[M]:
    """Sort machines by whether the bundle may be installed on them and taken off again.

    Parameters
    ----------
    versions : mapping of machine to the active version per part
        Keyed `kind` or `kind/slot`, as `fleet.selectors.versions_now` returns them.
    bundle : sequence of Image
        In the order of installation.
    images : collection of Image
        Every image that is kept; a version without one cannot be gone back to.
    allow_unordered : bool
        Whether a version that the scheme cannot order against the bundle's may be replaced.

    Notes
    -----
    A version that is not known blocks only where the image has a floor, and is never one that a
    machine can go back to. Each pair of a version and an image is judged once, so the time grows
    with machines times parts.

    Examples
    --------
    >>> old, new = Image("bmc", "4.1"), Image("bmc", "4.2", is_downgrade_allowed=False)
    >>> ready = readiness({"n1": {"bmc": "4.1"}, "n2": {"bmc": "A7"}}, bundle=[new], images=[old])
    >>> ready.blocked
    {'n2': "blocked: version can't be ordered: bmc A7 against 4.2 (dotted)"}
    >>> ready.irreversible
    {'n1': 'bmc 4.2 cannot be replaced by the older 4.1: downgrades are not allowed'}
    """
    kept = _by_kind([*images, *bundle])
    judges = [(image, _judge(image, kept, allow_unordered=allow_unordered)) for image in bundle]
    blocked: dict[M, str] = {}
    irreversible: dict[M, str] = {}
    current: list[M] = []
    for machine, parts in versions.items():
        verdicts = [
            judge(version) for image, judge in judges for version in _versions(parts, image.kind)
        ]
        if said := next((v.blocked for v in verdicts if v.blocked), ""):
            blocked[machine] = said
        elif verdicts and all(v.is_current for v in verdicts):
            current.append(machine)
        elif said := next((v.irreversible for v in verdicts if v.irreversible), ""):
            irreversible[machine] = said
    return Readiness(blocked=blocked, current=frozenset(current), irreversible=irreversible)


@dataclass(frozen=True)
class _Verdict:
    blocked: str = ""
    irreversible: str = ""
    is_current: bool = False


def _judge(
    image: Image, kept: Mapping[str, Sequence[Image]], *, allow_unordered: bool
) -> Callable[[str], _Verdict]:
    """Return the judge of one image, which remembers what it said of each version."""
    known: dict[str, _Verdict] = {}

    def judge(version: str) -> _Verdict:
        if version not in known:
            known[version] = _verdict(version, image, kept, allow_unordered=allow_unordered)
        return known[version]

    return judge


def _verdict(
    version: str, image: Image, kept: Mapping[str, Sequence[Image]], *, allow_unordered: bool
) -> _Verdict:
    if is_same(version, image.version, scheme=image.scheme):
        return _Verdict(is_current=True)
    before = _image_of(version, image, kept)
    return _Verdict(
        blocked=obstacle(version, image, before, allow_unordered=allow_unordered),
        irreversible=_back(version, image, before),
    )


def _back(version: str, image: Image, before: Image | None) -> str:
    if not version or version.startswith(_DISPUTED):
        return f"it is not known which version of {image.kind} to go back to"
    if before is None:
        return f"no image of {image.kind} {version} is kept to go back to"
    if before.activation == "by_hand":
        return f"{before} is activated by hand, which no roll back can do"
    order = compare(version, image.version, scheme=image.scheme)
    if order is not Order.NEWER and not may_step_down(image, before):
        how = "older" if order is Order.OLDER else "not comparable"
        return f"{image} cannot be replaced by the {how} {version}: downgrades are not allowed"
    if not reaches(version, image.floor_version, scheme=image.scheme):
        return f"{image} cannot be replaced by {version}: nothing below {image.floor_version} may"
    if not reaches(image.version, before.floor_version, scheme=image.scheme):
        return f"{before} replaces {before.floor_version} or newer only, not {image.version}"
    return ""


def _by_kind(images: Iterable[Image]) -> dict[str, list[Image]]:
    kinds: dict[str, list[Image]] = {}
    for image in images:
        kinds.setdefault(image.kind, []).append(image)
    return kinds


def _image_of(version: str, image: Image, kept: Mapping[str, Sequence[Image]]) -> Image | None:
    """Return the kept image of a version, of the same vendor where there are several."""
    found = [
        other
        for other in kept.get(image.kind, ())
        if is_same(other.version, version, scheme=image.scheme)
    ]
    return min(found, key=lambda other: other.vendor != image.vendor, default=None)


def _versions(parts: Mapping[str, str], kind: str) -> list[str]:
    """Return the versions of a kind's parts; one that is not known, where there is no part."""
    own = [parts[kind]] if kind in parts else []
    prefix = f"{kind}/"
    own += [version for part, version in parts.items() if part.startswith(prefix)]
    return own or [""]
