"""Small virtual fleets for tests."""

from datetime import UTC, datetime

from simulation.models import VirtualFleet
from simulation.parameters import Effect, Layout, Parameters, field_signatures
from simulation.services import create_fleet

ORIGIN = datetime(2026, 1, 5, tzinfo=UTC)
OLD = {"bmc": "1.0", "bios": "3.1"}


def parameters(machines: int = 40, *, per_machine_day: float = 2.0, **changes) -> Parameters:
    """A fleet of two platforms with fault rates high enough for small tests."""
    layouts = (
        Layout("dgx-h100", "h100", machines // 2, versions=OLD),
        Layout("dgx-b200", "b200", machines - machines // 2, versions=OLD),
    )
    return Parameters(
        layouts=layouts,
        signatures=field_signatures(per_machine_day=per_machine_day),
        **changes,
    )


def tripled(kind: str = "bmc", version: str = "2.0", **changes) -> Effect:
    """A firmware that triples every fault."""
    return Effect(kind, version, **{"ratios": {"*": 3.0}, **changes})


def make_fleet(machines: int = 40, *, seed: int = 7, **changes) -> VirtualFleet:
    """Store a small fleet and register its machines."""
    return create_fleet(
        parameters(machines, **changes), seed=seed, origin=ORIGIN, purpose="test", vouched_by="test"
    )
