"""Recompute what a rollout's evaluations said, from their own records."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rollouts.models import Evaluation, Rollout
from rollouts.replay import differences


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
        rows = rollout.evaluations.select_related("wave__rollout", "scores", "decision")
        wrong, partly = [], 0
        for row in rows.order_by("pk").iterator(chunk_size=50):
            wrong += differences(row)
            partly += row.kind == Evaluation.Kind.LOOK and not row.inputs.get("told")
        count = rows.count()
        self.stdout.write(f"{count} evaluations recomputed, {len(wrong)} differences")
        if partly:
            self.stdout.write(
                f"{partly} of them were recorded before proofs and installs were kept: of these "
                "only harm by re-assignment was recomputed"
            )
        if wrong:
            raise CommandError("\n".join(wrong))
