"""A cutoff, and how rows become columns at it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np
from django.db.models import Model, QuerySet

from rollouts.analysis.samples import FloatArray, IntArray
from rollouts.models import Membership, Wave

PRE_DAYS = 14
"""Length of the period before a wave, from which covariates come."""

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class Cutoff:
    """The comparison's origin, its cutoffs, and the end of the period before it."""

    origin: datetime
    as_of: datetime
    arrived_by: datetime
    before: datetime

    def seconds(self, at: datetime) -> float:
        return (at - self.origin).total_seconds()

    @property
    def pre_start(self) -> datetime:
        return self.before - timedelta(days=PRE_DAYS)


def origin_of(wave: Wave, *, as_of: datetime) -> datetime:
    """The clock start of the first block; before there is one, nothing has begun by `as_of`."""
    return (wave.clock_start or as_of).astimezone(UTC)


def since(origin: datetime, epoch: FloatArray) -> FloatArray:
    return np.round(epoch - origin.timestamp(), 6)


def codes(values: Sequence[str]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes into the sorted distinct values."""
    names = tuple(sorted(set(values)))
    code = {name: index for index, name in enumerate(names)}
    return np.array([code[value] for value in values], dtype=np.int64), names


def of_roster(rows: QuerySet[Row, Row], wave: Wave) -> QuerySet[Row, Row]:
    """Rows of the wave's machines, chosen by a sub-select: as many parameters for any size."""
    return rows.filter(machine__in=Membership.objects.filter(wave=wave).values("machine"))


def collected(model: type[Model], cutoff: Cutoff) -> bool:
    """Has this kind of report ever arrived, from any machine? If not, its silence says nothing."""
    rows: QuerySet[Any, Any] = model._default_manager.filter(received_at__lte=cutoff.arrived_by)
    return rows.exists()
