"""In which legs a bundle goes onto a machine: what shares an activation goes together. Pure."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

#: Ways to activate after which the host has booted anew.
_BOOTS = frozenset({"reboot", "power_cycle", "ac_cycle", "by_hand"})
_USUAL = "reboot"


def legs(targets: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the positions of the images of each leg, in bundle order.

    Neighbours in the order that activate in the same way share one activation, so that a host
    boots once for all of them. The order itself is never changed.

    Examples
    --------
    >>> ways = ("reset", "reboot", "reboot", "ac_cycle")
    >>> legs([{"kind": str(n), "activation": way} for n, way in enumerate(ways)])
    [[0], [1, 2], [3]]
    """
    numbered = groupby(range(len(targets)), key=lambda at: _activation(targets[at]))
    return [list(positions) for _, positions in numbered]


def needs_boot(targets: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the host boots when these images are activated.

    Examples
    --------
    >>> needs_boot([{"activation": "reset"}]), needs_boot([{"activation": "ac_cycle"}])
    (False, True)
    """
    return any(_activation(target) in _BOOTS for target in targets)


def is_by_hand(targets: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a person has to activate one of these images."""
    return any(_activation(target) == "by_hand" for target in targets)


def online_prefix(targets: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions that may be staged while the machine works.

    The order of the bundle holds: what follows an image that needs an idle machine waits for it.

    Examples
    --------
    >>> online_prefix([{"stages_online": True}, {"stages_online": False}, {"stages_online": True}])
    [0]
    """
    positions = []
    for position, target in enumerate(targets):
        if not target.get("stages_online"):
            break
        positions.append(position)
    return positions


def _activation(target: Mapping[str, Any]) -> str:
    return str(target.get("activation", _USUAL))
