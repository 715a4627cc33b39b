"""Halt a rollout from the command line: the web and the broker may be down."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from fleet import clock
from rollouts import services
from rollouts.lifecycle import TRANSITIONS, Trigger
from rollouts.models import Rollout

_CAN_BE_HALTED = [status for status, trigger in TRANSITIONS if trigger is Trigger.HALT]


class Command(BaseCommand):
    """Write the order; what is in flight goes to its end, nothing else starts."""

    help = "Halt a rollout at once. Only rows are written: the web and the broker may be down."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("rollout", help="name of the rollout")
        parser.add_argument("--user", required=True, help="who halts (the order names them)")
        parser.add_argument("--reason", default="", help="why; may be left out")

    def handle(self, *args: Any, **options: Any) -> None:
        rollout = Rollout.objects.filter(name=options["rollout"]).first()
        if rollout is None:
            live = Rollout.objects.filter(status__in=_CAN_BE_HALTED)
            names = ", ".join(sorted(live.values_list("name", flat=True)[:20])) or "none"
            raise CommandError(
                f"no rollout is called {options['rollout']!r}; can be halted: {names}"
            )
        users = get_user_model().objects.filter(is_active=True)
        actor = users.filter(username=options["user"]).first()
        if actor is None or not actor.has_perm("rollouts.halt_rollout"):
            raise CommandError(f"{options['user']!r} is no active user who may halt rollouts")
        services.halt(rollout, actor=actor, reason=options["reason"], now=clock.now())
        self.stdout.write(f"{rollout.name} is halted")
