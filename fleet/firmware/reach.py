"""Can a version be replaced by an image: order, floor and downgrades. Pure."""

from dataclasses import dataclass

from fleet.firmware.versions import Order, compare, is_same


@dataclass(frozen=True)
class Image:
    """What going to an image, and back from it, depends on.

    `floor_version` is the oldest version that the image may replace, and the oldest that may
    replace it. Where `is_downgrade_allowed` is false, the image neither replaces a newer version
    nor is replaced by an older one.
    """

    kind: str
    version: str
    scheme: str = "dotted"
    vendor: str = ""
    activation: str = "reboot"
    is_downgrade_allowed: bool = True
    floor_version: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.version}"


def obstacle(
    version: str, image: Image, before: Image | None = None, *, allow_unordered: bool = False
) -> str:
    """Return why the image cannot replace what runs; empty: it can.

    Parameters
    ----------
    version : str
        What runs; empty: it is not known, which stops only an image that has a floor.
    before : Image, optional
        The image of what runs, where one is kept; it may forbid a downgrade too.
    allow_unordered : bool
        Whether a version that cannot be ordered against the image's may be replaced.

    Examples
    --------
    >>> obstacle("4.1", Image("bmc", "4.2", floor_version="4.0"))
    ''
    >>> obstacle("5.0", Image("bmc", "4.2", is_downgrade_allowed=False))
    'blocked: bmc 4.2 cannot replace the newer 5.0: downgrades are not allowed'
    """
    if is_same(version, image.version, scheme=image.scheme):
        return ""
    if not version:
        return (
            f"blocked: {image} needs {image.floor_version} or newer, and what runs is not known"
            if image.floor_version
            else ""
        )
    order = compare(image.version, version, scheme=image.scheme)
    if order is Order.NOT_COMPARABLE and not allow_unordered:
        return (
            f"blocked: version can't be ordered: {image.kind} {version} against {image.version} "
            f"({image.scheme})"
        )
    if not reaches(version, image.floor_version, scheme=image.scheme):
        return f"blocked: {image} needs {image.floor_version} or newer, and {version} runs"
    if order is Order.OLDER and not may_step_down(before, image):
        return f"blocked: {image} cannot replace the newer {version}: downgrades are not allowed"
    return ""


def may_step_down(present: Image | None, wanted: Image) -> bool:
    """Tell whether an older image may replace a newer one; an unknown one does not object."""
    return wanted.is_downgrade_allowed and (present is None or present.is_downgrade_allowed)


def reaches(version: str, floor: str, *, scheme: str) -> bool:
    """Tell whether a version is at or above a floor; without a floor every version is."""
    return not floor or compare(version, floor, scheme=scheme) in (Order.EQUAL, Order.NEWER)
