"""An answer for people and programs: one document, its caveats in words, and plain text."""

import io
import math
from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollouts.analysis.fixes.answer import Answer, FixVerdict
from rollouts.analysis.fixes.elsewhere import PathMix
from rollouts.analysis.fixes.grid import EARLIER_DAYS, MOST_EARLIER
from rollouts.analysis.fixes.ratios import Comparison, Group
from rollouts.fixes.asked import Answered

PLAIN_WIDTH = 400
#: Other signatures that are listed; the rest are counted.
MOST_SHIFTS = 20
COLOURS = {
    FixVerdict.REDUCED: "green",
    FixVerdict.MOVED: "red",
    FixVerdict.NOT_REDUCED: "red",
    FixVerdict.NOT_ENOUGH: "yellow",
}


def caveats(found: Answered) -> list[str]:
    """What the intervals do not cover, with what is known of each."""
    return [
        *_drawn(),
        *_mean(found.answer),
        *_age(found.answer),
        *_calendar(found.answer),
        *_detectors(found),
        _("The level is that of one look. Who asks again until an answer pleases is misled."),
    ]


def _drawn() -> Iterator[str]:
    yield _(
        "Nobody drew at random which machines were fixed: this is observation, not an experiment."
    )


def _mean(answer: Answer) -> Iterator[str]:
    """Regression to the mean: whether they were chosen for having failed, and how far that goes."""
    yield _(
        "Regression to the mean: machines that are fixed because they failed fail less afterwards "
        "by themselves, so before and after alone are never taken as proof."
    )
    if answer.fixed_earlier is not None and answer.unfixed_earlier is not None:
        yield _(
            "In the %(days)d days before the fix the fixed machines had %(fixed)s episodes each, "
            "those not fixed by then %(unfixed)s."
        ) % {
            "days": EARLIER_DAYS,
            "fixed": figure(answer.fixed_earlier),
            "unfixed": figure(answer.unfixed_earlier),
        }
    falling = answer.falling
    if falling.by_itself is not None:
        yield _(
            "Unfixed machines with as many earlier episodes went from %(before)s to %(after)s per "
            "machine-day by themselves (× %(ratio)s)."
        ) % {
            "before": figure(falling.alike_before),
            "after": figure(falling.alike_after),
            "ratio": figure(falling.by_itself),
        }
    elif falling.fixed.unfixed.days <= 0:
        yield _(
            "The fixed machines were not in service before: there is no before to compare with."
        )
    if answer.alike.left_out:
        yield ngettext(
            "%(count)d fixed machine has no unfixed one that failed as often before.",
            "%(count)d fixed machines have no unfixed one that failed as often before.",
            answer.alike.left_out,
        ) % {"count": answer.alike.left_out}


def _age(answer: Answer) -> Iterator[str]:
    yield _(
        "Age and batch: what was fixed may also be newer, or of another batch; a difference that "
        "age or batch makes looks like one that the fix makes."
    )
    ages = answer.ages
    if ages.fixed is not None and ages.unfixed is not None:
        yield _(
            "Median age of the machines compared: %(fixed)d days fixed, %(unfixed)d days unfixed."
        ) % {"fixed": ages.fixed, "unfixed": ages.unfixed}


def _calendar(answer: Answer) -> Iterator[str]:
    yield _(
        "Calendar time: both are compared at the same time, but what else began for the fixed "
        "machines on that day is not told apart from the fix."
    )
    if answer.concurrent.compared_share < 1.0 and answer.concurrent.fixed.days > 0:
        yield _(
            "%(share)d %% of the fixed machine-time has unfixed machine-time beside it (same "
            "stratum, same period); the rest tells nothing."
        ) % {"share": math.floor(100 * answer.concurrent.compared_share)}


def _detectors(found: Answered) -> Iterator[str]:
    told = found.told
    if len(told.detectors) > 1:
        yield _(
            "Detector version: %(versions)s told of faults in this time; where a version sees "
            "more, more faults are counted."
        ) % {"versions": ", ".join(told.detectors)}
    elif not told.detectors:
        yield _(
            "Detector version: not recorded; a change of it would look like a change of faults."
        )


# --- the document --------------------------------------------------------------------------------


def as_document(found: Answered) -> dict[str, Any]:
    """The answer as one object, the same for page, API and command line; nothing in it is NaN."""
    told, answer = found.told, found.answer
    return {
        "verdict": answer.verdict.value,
        "answer": answer.words,
        "reason": answer.reason,
        "needs_machine_days": _rounded_up(answer.needs_days),
        "level": answer.level,
        "looks": 1,
        "fix": told.fix,
        "signatures": list(told.signatures),
        "platform": told.platform,
        "selector": told.selector,
        "since": told.since.isoformat(),
        "until": told.until.isoformat(),
        "is_recorded": told.is_recorded,
        "machines": {"fixed": answer.fixed_machines, "unfixed": answer.unfixed_machines},
        "concurrent": comparison(answer.concurrent),
        "alike": comparison(answer.alike)
        | {
            "earlier_days": EARLIER_DAYS,
            "classes": MOST_EARLIER + 1,
            "unmatched_machines": answer.alike.left_out,
        },
        "before_after": comparison(answer.falling.fixed, first="after", second="before")
        | {
            "alike_unfixed_before_per_day": answer.falling.alike_before,
            "alike_unfixed_after_per_day": answer.falling.alike_after,
            "alike_unfixed_ratio": answer.falling.by_itself,
        },
        "other_signatures": comparison(answer.others),
        "signatures_that_came": [
            {
                "signature": shift.name,
                "is_new": shift.is_new,
                "is_proven": shift.is_proven,
                **comparison(shift.comparison),
            }
            for shift in answer.shifts[:MOST_SHIFTS]
        ],
        "more_signatures": max(len(answer.shifts) - MOST_SHIFTS, 0),
        "severe_interruptions": comparison(answer.severe),
        "lost_work": comparison(answer.lost_work, amount="hours"),
        "recovery_paths": {
            "fixed_before": _mix(answer.mix_before),
            "fixed_after": _mix(answer.mix_after),
            "unfixed": _mix(answer.mix_unfixed),
        },
        "caveats": caveats(found),
        "notes": list(told.notes),
    }


def comparison(
    one: Comparison, *, first: str = "fixed", second: str = "unfixed", amount: str = "episodes"
) -> dict[str, Any]:
    """One comparison; numbers that do not exist are null."""
    return {
        first: _group(one.fixed, amount=amount),
        second: _group(one.unfixed, amount=amount),
        "ratio": one.estimate,
        "low": one.low,
        "high": one.high,
        "method": one.method,
    }


def _group(group: Group, *, amount: str) -> dict[str, Any]:
    return {
        "machines": group.machines,
        "machines_hit": group.hit,
        amount: group.amount,
        "machine_days": group.days,
        "per_machine_day": group.per_day,
    }


def _mix(mix: PathMix) -> dict[str, Any]:
    return {
        "interruptions": mix.total,
        "paths": {path or "not told": count for path, count in mix.counts.items()},
        "lost_hours": mix.lost_hours,
        "lost_hours_per_machine_day": mix.lost_hours_per_day,
        "machine_days": mix.days,
    }


def _rounded_up(days: float | None) -> int | None:
    return None if days is None else math.ceil(days)


def figure(value: float | None) -> str:
    """A number in three digits, or a dash."""
    return "–" if value is None else f"{value:.3g}"


# --- plain text ----------------------------------------------------------------------------------


def as_text(found: Answered, *, is_terminal: bool) -> str:
    """The whole answer for a terminal, or for a pipe without colours and breaks."""
    console = Console(
        file=io.StringIO(),
        force_terminal=is_terminal,
        width=None if is_terminal else PLAIN_WIDTH,
        highlight=False,
        soft_wrap=not is_terminal,
    )
    told, answer = found.told, found.answer
    with console.capture() as capture:
        headline = Text(f"{told.fix}, {', '.join(told.signatures)}: ")
        headline.append(answer.words, style=f"bold {COLOURS[answer.verdict]}")
        console.print(headline)
        console.print(Text(f"  {answer.reason}"))
        console.print(
            Text(
                f"  {told.since:%Y-%m-%d %H:%M} to {told.until:%Y-%m-%d %H:%M} UTC; "
                f"{answer.fixed_machines} machines fixed, {answer.unfixed_machines} not; "
                f"intervals at {100 * answer.level:g} %, one look"
            )
        )
        console.print(_table(answer))
        for line in _paths(answer):
            console.print(Text(line))
        for caveat in (*caveats(found), *told.notes):
            console.print(Text(f"- {caveat}"))
    lines = capture.get().splitlines()
    return "\n".join(lines if is_terminal else (line.rstrip() for line in lines)) + "\n"


def _table(answer: Answer) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("compared", "ratio", "interval", "fixed or after", "unfixed or before"):
        table.add_column(heading)
    rows = [
        ("fixed against unfixed, same time", answer.concurrent),
        ("as above, as many earlier episodes", answer.alike),
        ("after against before, fixed only", answer.falling.fixed),
        ("all other signatures", answer.others),
        ("interruptions that cost a job its progress", answer.severe),
        ("lost hours", answer.lost_work),
        *((f"  {shift.name}", shift.comparison) for shift in answer.shifts[:MOST_SHIFTS]),
    ]
    for name, one in rows:
        table.add_row(
            Text(name), figure(one.estimate), interval(one), _said(one.fixed), _said(one.unfixed)
        )
    return table


def interval(one: Comparison) -> str:
    """Both ends; an end that does not exist is said in words."""
    if one.low is None and one.high is None:
        return one.method
    high = "no upper end" if one.high is None else figure(one.high)
    return f"{figure(one.low)} to {high}"


def _said(group: Group) -> str:
    return f"{group.amount:.6g} in {group.days:,.0f} machine-days, {group.hit} machines"


def _paths(answer: Answer) -> Iterator[str]:
    for name, mix in (
        ("fixed, before", answer.mix_before),
        ("fixed, after", answer.mix_after),
        ("unfixed", answer.mix_unfixed),
    ):
        if mix.total:
            parts = ", ".join(f"{path or 'not told'} {count}" for path, count in mix.counts.items())
            yield f"recoveries {name}: {parts}; {mix.lost_hours:.6g} hours lost"
