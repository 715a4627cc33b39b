"""Say on the command line what the pages say: what something waits for, and what is safe now."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fleet.models import Machine
from rollouts.aftermath import aftermath
from rollouts.explain import explain, in_words
from rollouts.lifecycle import Status
from rollouts.models import Attempt, Rollout


class Command(BaseCommand):
    """The same conditions as on the page, in the API and in a notification."""

    help = "Say what a rollout, machine or attempt waits for, and whose move it is."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=("rollout", "machine", "attempt"))
        parser.add_argument("name", help="name of the rollout or machine, number of the attempt")

    def handle(self, *args: Any, **options: Any) -> None:
        subject = _find(options["kind"], options["name"])
        self.stdout.write(in_words(explain(subject)))
        if isinstance(subject, Rollout) and subject.status == Status.HALTED:
            self._now_what(subject)

    def _now_what(self, rollout: Rollout) -> None:
        found = aftermath(rollout)
        self.stdout.write(f"\nhalted, now what ({found.machines} machines):")
        for group in found.groups:
            mark = " [DO NOT REBOOT]" if group.do_not_reboot else ""
            more = f" and {group.more} more" if group.more else ""
            self.stdout.write(f"- {group.state}: {group.count}{mark}: {group.next_action}")
            self.stdout.write(f"  {', '.join(group.machines)}{more}")
        if found.irreversible_count:
            self.stdout.write(f"- cannot go back: {found.irreversible_count}")
            for name, why in found.irreversible:
                self.stdout.write(f"  {name}: {why}")


def _find(kind: str, name: str) -> Rollout | Machine | Attempt:
    found: Rollout | Machine | Attempt | None
    if kind == "rollout":
        found = Rollout.objects.filter(name=name).first()
    elif kind == "machine":
        found = Machine.objects.filter(name=name).first()
    else:
        found = Attempt.objects.filter(pk=int(name)).first() if name.isdecimal() else None
    if found is None:
        raise CommandError(f"there is no {kind} {name!r}")
    return found
