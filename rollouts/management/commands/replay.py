"""Recompute what a rollout's evaluations said, from their own records."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rollouts.models import Evaluation, Rollout
from rollouts.replay import jump_word, replay, replay_jumps


class Command(BaseCommand):
    """Exit status 0 if every stored evaluation says again what it said, else 1."""

    help = (
        "Recompute every stored evaluation of a rollout from its scores, its seed and the frozen "
        "roster, without any telemetry, and tell where the record says something else."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("rollout", help="name of the rollout")

    def handle(self, *args: Any, **options: Any) -> None:
        rollout = Rollout.objects.filter(name=options["rollout"]).first()
        if rollout is None:
            raise CommandError(f"no rollout is called {options['rollout']!r}")
        rows = rollout.evaluations.select_related("wave__rollout", "scores").order_by("pk")
        wrong = [line for row in rows.iterator(chunk_size=50) for line in _differences(row)]
        self.stdout.write(f"{rows.count()} evaluations recomputed, {len(wrong)} differences")
        if wrong:
            raise CommandError("\n".join(wrong))


def _differences(evaluation: Evaluation) -> list[str]:
    again, jumps = replay(evaluation), replay_jumps(evaluation)
    stored = {
        guardrail["name"]: jump_word(guardrail["details"]["jump"]["is_environment"])
        for guardrail in evaluation.guardrails
        if "jump" in guardrail["details"]
    }
    return [
        *(
            f"{evaluation}: {name} is stored as {stored.get(name, 'no jump')} of both arms, "
            f"recomputed as {jumps.get(name, 'no jump')}"
            for name in sorted(stored.keys() | jumps.keys())
            if stored.get(name) != jumps.get(name)
        ),
        *_crossings(evaluation, again),
    ]


def _crossings(evaluation: Evaluation, again: Mapping[str, bool]) -> list[str]:
    return [
        f"{evaluation}: {guardrail['name']} is stored as "
        f"{_word(guardrail['crossed'])}, recomputed as {_word(again[guardrail['name']])}"
        for guardrail in evaluation.guardrails
        if guardrail["name"] in again and again[guardrail["name"]] != guardrail["crossed"]
    ]


def _word(is_crossed: bool) -> str:
    return "harm shown" if is_crossed else "no harm shown"
