"""Which components act on each other: a change of one can show in the faults of the other. Pure."""

import re
from collections.abc import Iterable

#: Pairs that field failures have shown to depend on each other; within a word, case is ignored.
_PAIRS: frozenset[frozenset[str]] = frozenset(
    frozenset(pair)
    for pair in (
        ("gpu", "driver"),
        ("gpu", "nvidia"),
        ("gpu", "vbios"),
        ("gpu", "nvswitch"),
        ("gpu", "fabric"),
        ("gpu", "bios"),
        ("gpu", "kernel"),
        ("vbios", "driver"),
        ("vbios", "nvidia"),
        ("nvswitch", "driver"),
        ("nvswitch", "nvidia"),
        ("nvswitch", "fabric"),
        ("nic", "driver"),
        ("nic", "switch"),
        ("nic", "mlx5"),
        ("nic", "ofed"),
        ("nic", "bios"),
        ("nic", "kernel"),
        ("bios", "bmc"),
        ("bios", "microcode"),
        ("bios", "cpld"),
        ("bmc", "cpld"),
        ("bmc", "psu"),
        ("ssd", "kernel"),
        ("ssd", "bios"),
    )
)


def words_of(name: str) -> frozenset[str]:
    """Return the words of a component's or setting's name.

    Examples
    --------
    >>> sorted(words_of("nvidia-driver 550"))
    ['550', 'driver', 'nvidia']
    """
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def interacts(kinds: Iterable[str], *, changed: Iterable[str]) -> str:
    """Return which changed component is, or acts on, one of these kinds; empty if none does.

    Examples
    --------
    >>> interacts(["gpu"], changed=["nvidia-driver"])
    'nvidia-driver acts on gpu'
    >>> interacts(["bmc"], changed=["bmc"]), interacts(["bmc"], changed=["leaf switch"])
    ('bmc is changed itself', '')
    """
    known = sorted(set(kinds))
    for name in changed:
        words = words_of(name)
        for kind in known:
            if kind.lower() in words:
                return f"{name} is changed itself"
        for kind in known:
            if any(frozenset((kind.lower(), word)) in _PAIRS for word in words):
                return f"{name} acts on {kind}"
    return ""
