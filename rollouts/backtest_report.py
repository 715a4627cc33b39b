"""A backtest for people: what was decided and why, every guardrail, every look."""

import io
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rollouts.analysis.verdicts import (
    ArmCounts,
    DecisionKind,
    GuardrailEvaluation,
    Interval,
    LookEvaluation,
    Verdict,
)
from rollouts.backtest import DECISIVE, Backtest, reason_of, workload_rows

PLAIN_WIDTH = 400  # wider than any table, so that nothing is wrapped or cut in a pipe
COLOURS = {
    DecisionKind.WIDEN: "green",
    DecisionKind.HALT: "red",
    DecisionKind.HOLD: "yellow",
    Verdict.NOT_WORSE: "green",
    Verdict.HARMFUL: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NO_DATA: "yellow",
}


def as_text(backtest: Backtest, *, is_at_decision: bool, is_terminal: bool) -> str:
    """The whole report; plain text unless it goes to a terminal."""
    console = Console(
        file=io.StringIO(),
        force_terminal=is_terminal,
        width=None if is_terminal else PLAIN_WIDTH,
        highlight=False,
        soft_wrap=not is_terminal,
    )
    with console.capture() as capture:
        console.print(
            Group(
                *_headline(backtest),
                *_input(backtest),
                *_guardrails(backtest, is_at_decision=is_at_decision),
                *_looks(backtest),
            )
        )
    lines = capture.get().splitlines()
    return "\n".join(lines if is_terminal else (line.rstrip() for line in lines)) + "\n"


def _headline(backtest: Backtest) -> Iterable[RenderableType]:
    look, kind = backtest.decisive, backtest.decision
    at = f"look {look.look} of {len(backtest.looks)} ({backtest.time_of(look)})"
    yield Text.from_markup(
        f"[bold]{escape(backtest.case.name)}[/]: [bold {COLOURS[kind]}]{kind.upper()}[/] at {at}"
    )
    yield Text(f"  {look.recommendation.reason} ({look.recommendation.code})")
    yield Text(f"  advisory: {'; '.join(backtest.advisory_because)}")
    later = [
        f"look {other.look} {other.recommendation.kind}"
        for other in backtest.looks[look.look :]
        if other.recommendation.kind in DECISIVE and other.recommendation.kind is not kind
    ]
    if later:
        yield Text(f"  but later: {', '.join(later[:3])}{', ...' if len(later) > 3 else ''}")


def _input(backtest: Backtest) -> Iterable[RenderableType]:
    case = backtest.case
    canaries, controls = case.machines
    unit = "" if case.policy.unit == "machine" else f" in {len(case.samples.units.name)} units"
    yield Text("")
    yield Text(
        f"Window {backtest.time_at(0.0)} to "
        f"{backtest.time_of(backtest.looks[-1])}, burn-in {case.policy.burn_in_hours:g} h; "
        f"machines{unit}: {canaries} canary, {controls} control; "
        f"{case.policy.resamples} re-assignments, seed {case.policy.seed}"
    )
    if case.left_out_machines:
        yield Text(f"Left out: {case.left_out_machines} machines of other groups")
    for item in case.left_out_rows:
        yield Text(
            f"Left out: {item.count} rows of {item.file} ({item.kind.replace('_', ' ')}); "
            f"the first: {item.first}"
        )
    for note in case.notes:
        yield Text(f"Note: {note}")


def _guardrails(backtest: Backtest, *, is_at_decision: bool) -> Iterable[RenderableType]:
    decided = backtest.decisive
    shown = backtest.figures(is_at_decision=is_at_decision)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("guardrail", "verdict", "estimate", "repeated interval", "fixed-look interval"):
        table.add_column(heading)
    for heading in ("canary", "control"):
        table.add_column(f"{heading}: machines at risk, events, hours")
    for item, figures in zip(decided.guardrails, shown.guardrails, strict=True):
        table.add_row(
            Text(item.name),
            Text(item.verdict, style=COLOURS[item.verdict]),
            _number(figures.estimate),
            _interval(figures.repeated),
            _interval(figures.fixed_look),
            _arm(figures.canary),
            _arm(figures.control),
        )
    yield Text(f"\nVerdicts of look {decided.look}, figures of look {shown.look}")
    yield table
    for item, figures in zip(decided.guardrails, shown.guardrails, strict=True):
        yield Text(f"{item.name}: {reason_of(item, figures)}")
        yield from _workloads(figures)


def _workloads(figures: GuardrailEvaluation) -> Iterable[RenderableType]:
    rows = workload_rows(figures)
    if not rows:
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("workload")
    for heading in ("canary / control", "fixed-look low", "high"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(Text(row.name), *(_ratio(x) for x in (row.estimate, row.low, row.high)))
    yield table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _looks(backtest: Backtest) -> Iterable[RenderableType]:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("look", "as of", "decision"):
        table.add_column(heading, justify="right" if heading == "look" else "left")
    for item in backtest.decisive.guardrails:
        table.add_column(Text(item.name))
    for look in backtest.looks:
        table.add_row(*_look(backtest, look))
    yield Text("\nEvery look")
    yield table


def _look(backtest: Backtest, look: LookEvaluation) -> Iterable[RenderableType]:
    mark = " *" if look is backtest.decisive else ""
    yield f"{look.look}"
    yield backtest.time_of(look)
    kind = look.recommendation.kind
    yield Text(f"{kind} ({look.recommendation.code}){mark}", style=COLOURS.get(kind, ""))
    for item in look.guardrails:
        yield Text(item.verdict, style=COLOURS[item.verdict])


def _number(value: float | None) -> str:
    return "not estimable" if value is None else f"{value:.5g}"


def _interval(interval: Interval) -> str:
    if interval.low is None and interval.high is None:
        return "not estimable"
    low = "-inf" if interval.low is None else f"{interval.low:.4g}"
    high = "inf" if interval.high is None else f"{interval.high:.4g}"
    return f"{low} to {high} ({interval.level:.4g})"


def _arm(counts: ArmCounts) -> str:
    events = "-" if counts.events is None else str(counts.events)
    return f"{counts.machines}, {events}, {counts.exposure_hours:.6g}"
