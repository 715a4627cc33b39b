"""A demo on a small fleet and a short plan, as a function and as a process that can be killed."""

import sys
from dataclasses import replace
from typing import Any

from simulation.parameters import Effect, Parameters
from simulation.scenario import HARMFUL, fleet_parameters

MACHINES = 60


def parameters() -> Parameters:
    """The demo's fleet, small; its harmful image costs a tenth of the throughput."""
    slow = Effect("gpu", HARMFUL.images["gpu"], throughput=0.90)
    return replace(fleet_parameters(MACHINES, harm="faults"), effects=(slow,), non_return=0.05)


def plan() -> dict[str, Any]:
    """One judged wave and the rest, by throughput alone."""
    return {
        "mode": "automatic",
        "guardrails": [{"metric": "throughput"}, {"metric": "install", "required": False}],
        "scope": "machine",
        "strata": ["platform"],
        "waves": [
            {"share": 0.4, "window_hours": 24},
            {"rest": True, "window_hours": 24},
        ],
        "hold_back": 0.25,
        "look_minutes": 480,
        "burn_in_hours": 2,
        "surveillance_days": 0.5,
        "resamples": 1999,
        "read_backs": 1,
        "max_bricks": 5,
        "caps": {"max_in_flight": 80, "max_unavailable_share": 0.9, "paced": False},
        "on_halt": {"succeeded": "roll_back"},
    }


def main() -> None:
    """Run or go on, in the database of the environment; print each instant."""
    import django

    django.setup()

    from django.core.management import call_command

    from config.embedded import embedded_worker
    from simulation import demo

    call_command("migrate", verbosity=0)
    with embedded_worker():
        fleet = demo.set_up(parameters(), seed=3)
        rollouts = demo.run(
            fleet,
            document=plan(),
            on_history=lambda now: print("history", now, flush=True),
            on_step=lambda now: print("step", now, flush=True),
        )
    sys.exit(0 if all(demo.ended_as_it_should(rollout) for rollout in rollouts) else 1)


if __name__ == "__main__":
    main()
