"""The demo's story: a fleet in a bad month, a sound bundle, and one that is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from simulation.parameters import Effect, Layout, Parameters, Signature

ORIGIN = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday; the demo's time is its own
HISTORY = timedelta(days=4)  # the fleet's own period before, from which the planner learns
LEAST_MACHINES = 500

#: A bad month: faults and soft signals a machine-day. A healthy fleet has 0.05 soft signals and
#: 0.0038 hard faults, and the same plan would need windows many times as long.
SIGNATURES = (
    Signature("xid.94", 0.11, interrupts=True),
    Signature("xid.63", 0.08),
    Signature("xid.74", 0.06, interrupts=True, is_shared=True),
    Signature("xid.119", 0.05, interrupts=True),
    Signature("xid.48", 0.03, interrupts=True),
    Signature("xid.79", 0.03, interrupts=True),
    Signature("host.dimm_correctable", 0.15),
    Signature("nic.link_flap", 0.60, interrupts=True, is_shared=True),
)
HEALTHY_RATES = {"soft signals": 0.05, "hard faults": 0.0038}


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
    first = round(machines * 0.57)
    return Parameters(
        layouts=(
            Layout(SOUND.platform, "h100", first, vendor="NVIDIA", versions=OLD_VERSIONS),
            Layout(
                HARMFUL.platform, "b200", machines - first, vendor="NVIDIA", versions=OLD_VERSIONS
            ),
        ),
        signatures=SIGNATURES,
        effects=(HARMS[harm],),
        tick_minutes=240,
        novel_per_machine_day=0.0,
        lemon_share=0.012,  # as the field has them: 1.2 % at about fifteen times the rate
        lemon_low=10.0,
        lemon_high=20.0,
        # A node's own speed as the field measures it: 1 % between nodes, 1 % an hour.
        machine_sd=0.01,
        job_wave_sd=0.01,
        noise_sd=0.01,
        idle_share=0.0002,
        staging_minutes=0.0,  # the drain and the reboot are what takes time here
    )


def plan_document() -> dict[str, Any]:
    """Return the plan of both rollouts; what is not said here has the schema's default."""
    return {
        "guardrails": [
            {"metric": "throughput"},
            # Three times is the lax margin; the smaller the fleet, the less can be ruled out.
            {"metric": "faults", "signatures": ["xid.*"], "margin_ratio": 3.0},
            # What racks and cables do is watched, and halts, but proves nothing about firmware.
            {"metric": "faults", "signatures": ["host.*", "nic.*"], "required": False},
            {"metric": "novel_signatures"},
            {"metric": "recovery_time", "margin_ratio": 1.75},
            {"metric": "lost_work"},
            {"metric": "install", "required": False},
            {"metric": "telemetry", "required": False},
        ],
        "scope": "machine",  # throughput of a virtual machine is its own, not its job's
        "strata": ["platform", "from_version", "recent_faults"],
        "alpha": 0.02,  # the harm of this story is large; a false alarm would spoil it
        "extension": 1.0,
        "waves": [
            {"share": 0.025, "window_hours": 24, "allows_smoke": True},
            {"share": 0.3, "window_hours": 48},
            {"rest": True, "window_hours": 48},
        ],
        "hold_back": 0.28,
        "look_minutes": 240,
        # Two infant hours after a boot, and an hour more in which their alarms repeat.
        "burn_in_hours": 3,
        "surveillance_days": 1,
        "max_excess_faults": 2000,  # most of them soft signals, at the demo's rate
        "mode": "automatic",
        "read_backs": 2,
        # Only the smoke wave is paced: a demo has minutes, and every step costs a part of them.
        "caps": {"max_in_flight": 80, "max_unavailable_share": 0.4, "paced": False},
        "on_halt": {"succeeded": "roll_back"},
    }
