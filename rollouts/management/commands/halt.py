"""Halt a rollout, or all of them, from the command line: the web and the broker may be down."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from fleet import clock
from rollouts import roles, services
from rollouts.models import Rollout


class Command(BaseCommand):
    """Write the order; what is in flight goes to its end, nothing else starts."""

    help = "Halt a rollout at once. Only rows are written: the web and the broker may be down."

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("rollout", nargs="?", help="name of the rollout")
        which.add_argument("--all", action="store_true", help="everything that is under way")
        parser.add_argument("--user", required=True, help="who halts (the order names them)")
        parser.add_argument("--reason", default="", help="why; may be left out")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["all"]:
            given = services.halt_all(
                actor=_actor(options["user"]), reason=options["reason"], now=clock.now()
            )
            names = ", ".join(order.rollout.name for order in given) or "nothing was under way"
            self.stdout.write(f"halted: {names}")
            return
        rollout = _rollout(options["rollout"])
        actor = _actor(options["user"])
        services.halt(rollout, actor=actor, reason=options["reason"], now=clock.now())
        self.stdout.write(f"{rollout.name} is halted")


def _rollout(name: str) -> Rollout:
    rollout = Rollout.objects.filter(name=name).first()
    if rollout is None:
        live = Rollout.objects.filter(status__in=services.STOPPED)
        names = ", ".join(sorted(live.values_list("name", flat=True)[:20])) or "none"
        raise CommandError(f"no rollout is called {name!r}; can be halted: {names}")
    return rollout


def _actor(name: str) -> User:
    actor = User.objects.filter(is_active=True, username=name).first()
    if actor is None or not actor.has_perm(roles.HALT):
        raise CommandError(f"{name!r} is no active user who may halt rollouts")
    return actor
