"""How what a machine runs stands to what it is meant to run. Pure; unknown is not compliant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.firmware.versions import Order, compare, is_same

#: How `fleet.selectors.versions_now` says that witnesses disagree.
DISPUTED = "disputed"


class Standing(StrEnum):
    """How one machine stands to a bundle; of several parts the first in this order wins."""

    CORDONED = "cordoned"
    INCOMPATIBLE = "incompatible"
    UNKNOWN = "unknown"
    NOT_COMPARABLE = "not_comparable"
    OLDER = "older"
    NEWER = "newer"
    COMPLIANT = "compliant"


@dataclass(frozen=True)
class Wanted:
    """One image that a machine is meant to run, and how its versions compare."""

    kind: str
    version: str
    scheme: str = "dotted"


@dataclass(frozen=True)
class Drift:
    """A standing and its reason in words; compliance needs none."""

    standing: Standing
    reason: str = ""


_BY_ORDER = {
    Order.EQUAL: Standing.COMPLIANT,
    Order.OLDER: Standing.OLDER,
    Order.NEWER: Standing.NEWER,
    Order.NOT_COMPARABLE: Standing.NOT_COMPARABLE,
}


def drift(versions: Mapping[str, str], *, wanted: Sequence[Wanted]) -> Drift:
    """Tell how the active versions of a machine stand to the images it is meant to run.

    Parameters
    ----------
    versions : mapping of part to version
        Keyed `kind` or `kind/slot`, as `fleet.selectors.versions_now` gives them.
    wanted : sequence of Wanted
        One per image of the bundle. Every part of its kind has to run it.

    Examples
    --------
    >>> drift({"bmc": "4.1"}, wanted=[Wanted("bmc", "4.2")])
    Drift(standing=<Standing.OLDER: 'older'>, reason='bmc runs 4.1, 4.2 is wanted')
    >>> drift({"bmc": "A07"}, wanted=[Wanted("bmc", "A7", "plain")]).standing.value
    'not_comparable'
    >>> drift({}, wanted=[Wanted("bmc", "4.2")]).reason
    'it is not known what bmc runs, 4.2 is wanted'
    """
    found = [one for image in wanted for one in _of_image(versions, image)]
    order = list(Standing)
    worst = min(found, key=lambda one: order.index(one.standing), default=None)
    return worst or Drift(Standing.UNKNOWN, "the bundle has no images")


def _of_image(versions: Mapping[str, str], image: Wanted) -> list[Drift]:
    prefix = f"{image.kind}/"
    own = {
        part: version
        for part, version in versions.items()
        if part == image.kind or part.startswith(prefix)
    }
    return [_of_part(*item, image=image) for item in (own or {image.kind: ""}).items()]


def _of_part(part: str, version: str, *, image: Wanted) -> Drift:
    if not version:
        reason = f"it is not known what {part} runs, {image.version} is wanted"
        return Drift(Standing.UNKNOWN, reason)
    if version.startswith(DISPUTED):
        return Drift(Standing.UNKNOWN, f"{part} is {version}, {image.version} is wanted")
    if is_same(version, image.version, scheme=image.scheme):
        return Drift(Standing.COMPLIANT)
    standing = _BY_ORDER[compare(version, image.version, scheme=image.scheme)]
    if standing is Standing.NOT_COMPARABLE:
        reason = f"{part} runs {version}, which can't be ordered against {image.version}"
        return Drift(standing, f"{reason} ({image.scheme})")
    return Drift(standing, f"{part} runs {version}, {image.version} is wanted")
