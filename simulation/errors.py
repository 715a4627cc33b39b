"""Errors of the virtual fleet."""

from fleet.errors import AdapterFailed


class SimulationError(Exception):
    """Base of the virtual fleet's errors; messages state the value seen."""


class NoVirtualFleet(SimulationError, AdapterFailed):
    """There is no virtual fleet, or not this machine in it; to the product, nobody answers."""


class NotADemo(SimulationError):
    """The database is not the demo's to use."""


class Stuck(SimulationError):
    """Nothing is due any more, or nothing moves, and the rollouts have not ended."""
