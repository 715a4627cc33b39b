"""The demo's report: what each rollout did, wave by wave, and why."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Count
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rollouts import selectors
from rollouts.analysis import power
from rollouts.models import Rollout, Wave
from simulation.demo import ended_as_it_should
from simulation.scenario import HEALTHY_RATES

#: The z bound of a window's last checkpoint with an extension (docs/statistics.md).
LAST_BOUND = 1.936
PLAIN_WIDTH = 400  # wider than any line, so that nothing is wrapped or cut in a pipe
COLOURS = {
    "not_worse": "green",
    "harmful": "red",
    "inconclusive": "yellow",
    "no_data": "yellow",
    "widened": "green",
    "halted": "red",
    "held": "yellow",
    "completed": "green",
    "rolled_back": "red",
}


def print_report(console: Console, rollouts: Iterable[Rollout], *, now: datetime) -> None:
    """Print everything about the rollouts, as tables on a terminal and plainly elsewhere."""
    for rollout in rollouts:
        for part in _of_rollout(rollout, now=now):
            console.print(part)


def _of_rollout(rollout: Rollout, *, now: datetime) -> Iterable[RenderableType]:
    yield ""
    yield Text(f"{rollout.name}: {rollout.bundle} on {rollout.selector}", style="bold")
    yield _ending(rollout)
    yield ""
    for wave in selectors.waves_of(rollout):
        yield from _of_wave(wave, selectors.arm_sizes(rollout).get(wave.number, {}))
    yield from _cost(rollout, now=now)
    yield from _healthy(rollout)


def _ending(rollout: Rollout) -> Text:
    colour = COLOURS.get(rollout.status, "yellow")
    verdict = "as it should" if ended_as_it_should(rollout) else "NOT as it should"
    text = Text.assemble("ended ", (rollout.status, f"bold {colour}"), f", {verdict}")
    last = selectors.headline(rollout)
    return text if last is None else text.append(f": {last.reason} ({last.reason_code})")


def _of_wave(wave: Wave, arms: Mapping[str, int]) -> Iterable[RenderableType]:
    """Yield who was in the wave, what was decided and, of the deciding look, every guardrail."""
    kind = "Release wave" if wave.kind == Wave.Kind.RELEASE else "Wave"
    canaries = arms.get("canary", wave.size)
    text = Text.assemble((f"{kind} {wave.number}", "bold"), f", {canaries} machines")
    if arms.get("control"):
        text.append(f" against {arms['control']} untreated ones")
    text.append(": ").append(wave.status, style=COLOURS.get(wave.status, ""))
    if wave.finished_at:
        text.append(f" on {wave.finished_at:%a %d at %H:%M}")
    yield text
    evaluation = selectors.deciding_evaluation(wave)
    if evaluation is None:
        return
    decision = wave.decisions.filter(evaluation=evaluation).get()
    hours = (decision.as_of - (wave.clock_start or decision.as_of)).total_seconds() / 3600
    yield (
        f"  {decision.kind} ({decision.reason_code}) at look {evaluation.look}, after {hours:.0f} "
        f"of {wave.window_hours:.0f} hours: {decision.reason}"
    )
    yield _guardrails(evaluation.guardrails)


def _guardrails(guardrails: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("  guardrail", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("estimate", "from", "to", "canary", "control"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in guardrails:
        table.add_row(
            f"  {escape(item['name'])}{'' if item['required'] else ' °'}",
            Text(item["verdict"], style=COLOURS.get(item["verdict"], "")),
            _number(item, item["estimate"]),
            _number(item, item["repeated"]["low"]),
            _number(item, item["repeated"]["high"]),
            _arm(item["canary"]),
            _arm(item["control"]),
        )
    table.caption = "° not required for widening; from, to: interval valid under repeated looks"
    table.caption_justify = "left"
    return table


def _number(item: Mapping[str, Any], value: float | None) -> str:
    if value is None:
        return "–"
    if item["metric"] == "throughput":
        return f"{100 * (value - 1):+.1f} %"
    if item["metric"] == "lost_work":
        return f"{value:+.2f} √h"
    return f"× {value:.2f}" if item["unit"] == "ratio" else f"{100 * value:+.1f} %"


def _arm(arm: Mapping[str, Any]) -> str:
    events = "" if arm["events"] is None else f"{arm['events']} in "
    return f"{events}{arm['exposure_hours']:,.0f} h"


def _cost(rollout: Rollout, *, now: datetime) -> Iterable[str]:
    family = [rollout, *rollout.children.all()]
    lost = sum(selectors.lost_machine_hours(one, until=now) for one in family)
    yield (
        f"{selectors.machines_exposed(rollout)} of {rollout.assignments.count()} machines were "
        f"ever exposed; installs, reboots and repairs cost {lost:,.1f} machine-hours."
    )
    for one in family:
        yield f"Installs{' of the roll back' if one.parent_id else ''}: {_attempts(one)}."


def _attempts(rollout: Rollout) -> str:
    rows = rollout.attempts.values("status", "triage").annotate(n=Count("pk")).order_by("-n")
    return ", ".join(
        f"{row['n']} {row['status']}" + (f" ({row['triage']})" if row["triage"] else "")
        for row in rows
    )


def _healthy(rollout: Rollout) -> Iterable[str]:
    """Tell what a fleet in good health would need for the same certainty."""
    wave = rollout.waves.get(number=2)  # the first that is no smoke test
    rates = wave.forecast.get("frozen_fault_rate", {})
    for item in rollout.plan["guardrails"]:
        name = f"faults:{'+'.join(item.get('signatures', []))}"
        if item["metric"] != "faults" or item["required"] is False or not rates.get(name):
            continue
        needs = " and ".join(
            f"{_days_needed(wave, rate=rate, margin=item['margin_ratio']):,.0f} days for {what} "
            f"({rate:g})"
            for what, rate in HEALTHY_RATES.items()
        )
        yield (
            f"This fleet has a bad month ({rates[name]:.2f} episodes of {name} a machine-day). At "
            f"a healthy fleet's rates wave {wave.number} would need, instead of "
            f"{wave.window_hours / 24:.0f} days, about {needs} a machine-day."
        )


def _days_needed(wave: Wave, *, rate: float, margin: float) -> float:
    canaries, controls = wave.forecast["canaries"], wave.forecast["controls"]
    machine_days = power.needed_exposure(
        power.FaultRate(rate, dispersion=0.5),  # the demo's own spread between machines
        n_canary=canaries,
        n_control=controls,
        margin=margin,
        bound=LAST_BOUND,
        power=0.9,
    )
    return machine_days / canaries
