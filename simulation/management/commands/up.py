"""`manage.py up`: the whole product in one process, with the demo fleet living on."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from config.embedded import AlreadyRunning, StartFailed, only_process, queue_owner, serve
from fleet import clock
from fleet.models import Clock, Machine
from simulation import demo
from simulation.errors import SimulationError
from simulation.models import VirtualFleet
from simulation.scenario import ORIGIN

#: Virtual seconds a second: a virtual day takes four minutes.
RATE = 360.0


class Command(BaseCommand):
    """Serve the product; a database with nothing in it gets the demo's virtual fleet."""

    help = (
        "Serve web, worker and scheduler from one process. An empty database gets the demo's "
        "virtual fleet, which then lives on in scaled time; one with machines of its own is "
        "served as it is, in real time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="to listen on (%(default)s)")
        parser.add_argument("--host", default="127.0.0.1", help="to listen on (%(default)s)")
        parser.add_argument(
            "--rate",
            type=float,
            default=RATE,
            help="virtual seconds a second of the demo fleet (%(default)g: a day in four minutes)",
        )
        parser.add_argument("--seed", type=int, default=1, help="of a new fleet (%(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 < options["rate"] <= 86_400:
            raise CommandError(
                f"--rate {options['rate']}: accepted are numbers above 0, up to 86400",
                returncode=2,
            )
        try:
            with only_process(queue_owner()):
                call_command("migrate", interactive=False, verbosity=0)
                lines = self.prepare(rate=options["rate"], seed=options["seed"])
            status = serve(
                options["port"],
                on_ready=lambda address: self.tell(address, lines),
                host=options["host"],
            )
        except (SimulationError, AlreadyRunning, StartFailed) as error:
            raise CommandError(str(error), returncode=2) from error
        if status:
            raise SystemExit(status)

    def prepare(self, *, rate: float, seed: int) -> list[str]:
        """Make the fleet if there is nothing, let its time run, and return what to tell."""
        if Machine.objects.exists() and not VirtualFleet.objects.exists():
            return ["The machines of this database are real: the clock is the wall's."]
        if not VirtualFleet.objects.exists() and settings.SIMULATION_ENABLED:
            self.stdout.write("The database is empty: making the demo's virtual fleet ...")
            demo.begin_living(seed=seed)
        if not demo.is_virtual_only():
            return []
        demo.release_leases()
        virtual = Clock.objects.filter(pk=1).exclude(mode=Clock.Mode.REAL).first()
        start = virtual.virtual_time if virtual else ORIGIN
        demo.add_up()
        clock.set_mode(Clock.Mode.SCALED, at=start, rate=rate)
        people = demo.people()
        return [
            f"Virtual time runs from {start:%a %Y-%m-%d %H:%M} at {rate:g} seconds a second.",
            *(f"Log in as {name}, password {demo.password_of(name)}" for name in people),
        ]

    def tell(self, address: str, lines: list[str]) -> None:
        self.stdout.write("\n".join([f"Coalmine serves {address} (stop with Ctrl-C)", *lines]))
        self.stdout.flush()
