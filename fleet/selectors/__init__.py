"""Reads of the fleet: which machines, which versions when, how far telemetry has come."""

from fleet.selectors.machines import machines_matching
from fleet.selectors.telemetry import collected_until
from fleet.selectors.versions import (
    Interval,
    Run,
    Waiting,
    history,
    staged_versions,
    version_changes,
    version_schemes,
    versions_as_of,
    versions_now,
    who_ran,
)

__all__ = [
    "Interval",
    "Run",
    "Waiting",
    "collected_until",
    "history",
    "machines_matching",
    "staged_versions",
    "version_changes",
    "version_schemes",
    "versions_as_of",
    "versions_now",
    "who_ran",
]
