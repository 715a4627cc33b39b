"""The fleet in the admin: configuration can be edited, records and states only read.

A machine's state, its cordons and the telemetry move through `fleet.services`, which keep the
rules and write the records; the admin offers no way around them. Each module registers its models.
"""

from fleet.admin import (  # noqa: F401
    accounts,
    capacity,
    changes,
    clock,
    firmware,
    inventory,
    lifecycle,
    recovery,
    telemetry,
)
