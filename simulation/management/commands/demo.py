"""`manage.py demo`: whole canary rollouts on a virtual fleet, and what they decided."""

import logging
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, TextIO, cast

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import connections
from rich.console import Console

from config.embedded import AlreadyRunning, embedded_worker, only_process, queue_owner
from fleet import clock
from simulation import demo
from simulation.errors import SimulationError
from simulation.models import VirtualFleet
from simulation.progress import bars
from simulation.report import PLAIN_WIDTH, print_report
from simulation.scenario import HARMS, LEAST_MACHINES, fleet_parameters


class Command(BaseCommand):
    """Run the demo, or go on with it, and report."""

    help = (
        "Run two whole canary rollouts on a seeded virtual fleet, through the real pipeline: one "
        "bundle is sound and is widened wave by wave, the other is harmful and is halted and "
        "rolled back. Killed and started again, it goes on. Exit status 0 if both ended as they "
        "should, 1 if not, 2 if it could not run."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--fresh", action="store_true", help="begin anew; the old database is moved aside"
        )
        parser.add_argument(
            "--seed", type=int, default=1, help="of the fleet (default %(default)s)"
        )
        parser.add_argument(
            "--machines", type=int, default=demo.USUAL_MACHINES, help=f"at least {LEAST_MACHINES}"
        )
        parser.add_argument(
            "--harm",
            choices=sorted(HARMS),
            default="faults",
            help="what the harmful bundle does: triple the GPU faults, or slow training by 3 %%",
        )
        parser.add_argument(
            "--any-database",
            action="store_true",
            help="run in the database of DATABASE_URL even if it is no SQLite file",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        console = console_for(self.stdout)
        try:
            ended_well = run(console, options)
        except (SimulationError, AlreadyRunning) as error:
            raise CommandError(str(error), returncode=2) from error
        if not ended_well:
            raise SystemExit(1)


def console_for(stream: OutputWrapper) -> Console:
    """Return a console that wraps on a terminal only."""
    is_terminal = stream.isatty()
    file = cast("TextIO", stream)  # it writes like one
    return Console(file=file, width=None if is_terminal else PLAIN_WIDTH, highlight=False)


def run(console: Console, options: dict[str, Any]) -> bool:
    """Prepare the database, run the demo in it, print the report; true if all went well."""
    if not 0 <= options["seed"] < 2**32:
        raise CommandError(f"--seed {options['seed']}: accepted are 0 to 4294967295", returncode=2)
    if options["machines"] < LEAST_MACHINES:
        raise CommandError(
            f"--machines {options['machines']}: at least {LEAST_MACHINES} are needed", returncode=2
        )
    if not settings.IS_EMBEDDED and not options["any_database"]:
        raise CommandError(
            "DATABASE_URL names a server; the demo makes a fleet and moves the one clock. "
            "Unset it to use a file, or add --any-database if this database is for that",
            returncode=2,
        )
    with only_process(queue_owner()):
        if options["fresh"]:
            begin_anew(console)
        call_command("migrate", interactive=False, verbosity=0)
        demo.check_database()
        quiet_logs()
        return drive(console, options)


def drive(console: Console, options: dict[str, Any]) -> bool:
    """Run what there is to run, and report."""
    tell_what_is_there(console, options)
    with embedded_worker(concurrency=4), bars(console) as shown:
        parameters = fleet_parameters(options["machines"], harm=options["harm"])
        fleet = demo.set_up(parameters, seed=options["seed"])
        rollouts = demo.run(fleet, on_history=shown.on_history, on_step=shown.on_step)
    print_report(console, rollouts, now=clock.now())
    console.print(how_to_go_on())
    return all(demo.ended_as_it_should(rollout) for rollout in rollouts)


def tell_what_is_there(console: Console, options: dict[str, Any]) -> None:
    fleet = VirtualFleet.objects.first()
    if fleet is None:
        console.print(f"Virtual fleet of {options['machines']} machines, seed {options['seed']}.")
    elif fleet.notes:
        console.print(f"The demo of seed {fleet.seed} has run; --fresh begins anew.")
    else:
        console.print(f"Going on with the unfinished demo of seed {fleet.seed}.")


def how_to_go_on() -> str:
    return "\n".join(
        [
            "",
            "See this very data in the web admin:  python3 manage.py up",
            *(f"  log in as {name}, password {demo.password_of(name)}" for name in demo.people()),
        ]
    )


def begin_anew(console: Console) -> None:
    """Move the demo's database aside; never one that holds anything else.

    Raises
    ------
    NotADemo
        If it holds machines that are not virtual.
    """
    if not settings.IS_EMBEDDED:
        raise CommandError(
            "--fresh makes a new database file; on a server, make a new database", returncode=2
        )
    path = Path(settings.DATABASES["default"]["NAME"])
    if not path.exists():
        return
    call_command("migrate", interactive=False, verbosity=0)
    demo.check_database()
    connections.close_all()  # the last connection writes the log back into the file
    aside = path.with_name(f"{path.name}.before")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    console.print(f"The old database is now {aside}.")


def quiet_logs() -> None:
    """Keep the bars readable: what happens is in the records, only trouble is logged."""
    logging.getLogger().setLevel(logging.WARNING)
