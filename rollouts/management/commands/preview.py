"""`manage.py preview`: what a draft would do, under the same digest as page and API."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fleet import clock
from rollouts import selectors, services
from rollouts.drafts import read_draft
from rollouts.errors import PolicyRefused
from rollouts.lifecycle import Status
from rollouts.models import Preview, Rollout

#: How the name of a draft's file ends.
FILES = (".json", ".toml", ".yaml", ".yml")


class Command(BaseCommand):
    """Preview a draft, or a file that describes one; of a submitted plan, show what it promised."""

    help = "Preview a draft: who, when, in which arm, at what cost, under which digest."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "rollout",
            metavar="ROLLOUT|FILE",
            help=f"name of the rollout, or a file of a draft ({', '.join(FILES)}): nothing is kept",
        )
        parser.add_argument("--json", action="store_true", help="one object and nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        rollout = Rollout.objects.select_related("bundle").filter(name=options["rollout"]).first()
        if rollout is None and options["rollout"].endswith(FILES):
            self.glance(Path(options["rollout"]), as_json=options["json"])
            return
        if rollout is None:
            drafts = Rollout.objects.filter(status=Status.DRAFT).values_list("name", flat=True)
            names = ", ".join(sorted(drafts[:20])) or "none"
            raise CommandError(f"no rollout is called {options['rollout']!r}; drafts: {names}")
        seen = self.seen(rollout)
        if options["json"]:
            self.stdout.write(json.dumps({"digest": seen.digest, **seen.summary}, indent=1))
            return
        for line in lines(seen):
            self.stdout.write(line)

    def glance(self, path: Path, *, as_json: bool) -> None:
        """Show what the draft of a file would do; no row is written."""
        now = clock.now()
        try:
            draft = services.draft_of(**read_draft(path), author=None, now=now)
        except PolicyRefused as error:
            raise CommandError(str(error)) from error
        seen = services.glance(draft, now=now)
        if as_json:
            told = {"digest": seen.digest, "seed": draft.seed, "is_kept": False, **seen.summary}
            self.stdout.write(json.dumps(told, indent=1))
            return
        for line in lines(seen):
            self.stdout.write(line)
        self.stdout.write(
            "nothing is kept; a draft of this name, bundle and plan with seed "
            f"{draft.seed} has this digest while the fleet and its recent faults stand as they do"
        )

    def seen(self, rollout: Rollout) -> Preview:
        if rollout.status == Status.DRAFT:
            return services.preview(rollout, now=clock.now())
        seen = selectors.preview_of(rollout)
        if seen is None:
            raise CommandError(f"{rollout} is {rollout.status} and its preview was not kept")
        return seen


def lines(seen: Preview) -> Iterator[str]:
    """Say in short lines what the preview holds."""
    plan = seen.summary
    yield f"digest {seen.digest}"
    yield f"{plan['rollout']}: {plan['bundle']} to {plan['machines']} machines ({plan['selector']})"
    yield from (f"REFUSED {reason}" for reason in plan["refusals"])
    for halt in plan.get("earlier_halts", ()):
        who = halt["by"] or "the engine"
        yield f"the bundle was halted by {who} in {halt['rollout']}: {halt['reason'] or '-'}"
    yield from (_wave(wave) for wave in plan["waves"])
    yield from (f"wave {word['number']}: {word['summary']}" for word in plan["forecast"])
    yield from (f"fixed in advance: {term}" for term in plan.get("terms", ()))
    yield from (f"left out {_group(group)}" for group in plan["excluded"])
    yield from (f"irreversible {_group(group)}" for group in plan["irreversible"])
    yield from _neighbours(plan.get("neighbours") or {})
    for other in plan["conflicts"]:
        yield f"rollout {other['rollout']} ({other['status']}) has {other['machines']['count']}"
    for pool in plan["capacity"]:
        yield (
            f"pool {pool['pool'] or '-'}: at most {pool['most_out']} of {pool['machines']} out, "
            f"{pool['machine_hours']:g} machine-hours"
        )


def _wave(wave: Mapping[str, Any]) -> str:
    name = "release" if wave["kind"] == "release" else f"wave {wave['number']}"
    smoke = ", smoke" if wave["allows_smoke"] else ""
    empty = " (empty)" if wave["is_empty"] else ""
    purity = wave.get("purity")
    pure = "" if purity is None else f"purity {purity:.0%}, "
    return (
        f"{name}: {wave['machines']} machines{empty}{smoke}, {wave['controls']} controls, {pure}"
        f"{wave['starts_at'] or '?'} to {wave['ends_at'] or '?'}"
    )


def _group(group: Mapping[str, Any]) -> str:
    more = ", …" if group["count"] > len(group["first"]) else ""
    return f"{group['count']}: {group['reason']} ({', '.join(group['first'])}{more})"


def _neighbours(found: Mapping[str, Any]) -> Iterator[str]:
    """Say whom the bundle reboots besides the machines of the plan."""
    if along := found.get("along", {}).get("count"):
        yield f"drained with their {found['field']}, since they run the bundle already: {along}"
    for row in found.get("blocked", ()):
        yield f"{found['field']} {row['domain']} does not start: not in the plan: {row['machines']}"
