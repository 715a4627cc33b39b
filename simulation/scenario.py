"""The demo's story: a fleet in a bad month, a sound bundle, and one that is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from simulation.parameters import Effect, Layout, Parameters, field_signatures

ORIGIN = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday; the demo's time is its own
HISTORY = timedelta(days=4)  # the fleet's own period before, from which the planner learns
LEAST_MACHINES = 500

#: Faults and soft signals a machine-day. A healthy fleet has about a tenth of it
#: (soft signals 0.05, hard faults 0.0038), and would need windows ten times as long.
RATE = 0.6
HEALTHY_RATE = 0.05


@dataclass(frozen=True)
class Story:
    """One rollout of the demo: what is installed where, and how it ought to end."""

    name: str
    platform: str
    bundle: str
    version: str
    images: Mapping[str, str]
    is_sound: bool

    @property
    def ending(self) -> str:
        return "completed" if self.is_sound else "rolled_back"


OLD_VERSIONS = {"bmc": "1.8.2", "bios": "2.4.0", "gpu": "96.00.74"}
OLD_BUNDLE = ("factory", "1.8", OLD_VERSIONS)
SOUND = Story(
    name="H100 spring firmware",
    platform="dgx-h100",
    bundle="h100-spring",
    version="2.0",
    images={"bmc": "1.9.0", "bios": "2.5.1", "gpu": "96.00.89"},
    is_sound=True,
)
HARMFUL = Story(
    name="B200 spring firmware",
    platform="dgx-b200",
    bundle="b200-spring",
    version="2.0",
    images={"bmc": "1.9.1", "bios": "2.5.1", "gpu": "97.00.12"},
    is_sound=False,
)
STORIES = (SOUND, HARMFUL)

#: What is wrong with the second bundle, by the name of `--harm`.
HARMS: Mapping[str, Effect] = {
    "faults": Effect("gpu", HARMFUL.images["gpu"], ratios={"xid.*": 3.0}),
    "throughput": Effect("gpu", HARMFUL.images["gpu"], throughput=0.97),
}


def fleet_parameters(machines: int, *, harm: str) -> Parameters:
    """Return the demo fleet's truth: the field's nuisances, and one harmful image."""
    first = round(machines * 0.55)
    return Parameters(
        layouts=(
            Layout(SOUND.platform, "h100", first, vendor="NVIDIA", versions=OLD_VERSIONS),
            Layout(
                HARMFUL.platform, "b200", machines - first, vendor="NVIDIA", versions=OLD_VERSIONS
            ),
        ),
        signatures=field_signatures(per_machine_day=RATE),
        effects=(HARMS[harm],),
        tick_minutes=120,
    )


def plan_document() -> dict[str, Any]:
    """Return the plan of both rollouts; what is not said here has the schema's default."""
    return {
        "guardrails": [
            {"metric": "throughput"},
            {"metric": "faults", "signatures": ["xid.*"]},
            {"metric": "faults", "signatures": ["host.*", "nic.*"]},
            {"metric": "novel_signatures"},
            {"metric": "recovery_time"},
            {"metric": "install"},
            {"metric": "telemetry"},
        ],
        "scope": "machine",  # throughput of a virtual machine is its own, not its job's
        "waves": [
            {"share": 0.02, "window_hours": 24, "allows_smoke": True},
            {"share": 0.15, "window_hours": 48},
            {"share": 0.40, "window_hours": 48},
            {"rest": True, "window_hours": 48},
        ],
        "look_minutes": 120,
        "hold_back": 0.15,
        "surveillance_days": 1,
        "max_excess_faults": 200,  # soft signals, at the demo's rate
        "mode": "automatic",
        "read_backs": 2,
        "caps": {"max_in_flight": 80, "max_unavailable_share": 0.4},
        "on_halt": {"succeeded": "roll_back"},
    }
