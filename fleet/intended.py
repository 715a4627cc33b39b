"""Reads: which bundle one machine is meant to run, why, and whether it can come to it.

The bundle of its open rollout's arm goes before its pool's: a canary is meant to run the new one,
a machine whose turn has not come stays on what it ran, so that the comparison stays one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from fleet import adapters
from fleet.adapters import Arm
from fleet.compliance import desired_bundles
from fleet.firmware.drift import DISPUTED, Drift, Standing, Wanted, drift
from fleet.firmware.reach import Image, obstacle
from fleet.firmware.versions import is_same
from fleet.models import DesiredBundle, FirmwareBundle, FirmwareImage, Machine
from fleet.selectors import versions_as_of


@dataclass(frozen=True)
class Intended:
    """What a machine is meant to run, why, how it stands to it, and whether it can get there."""

    machine: str
    bundle: FirmwareBundle | None
    why: str
    drift: Drift


def intended_bundle(
    machine: Machine, *, now: datetime, arms: Iterable[Arm] | None = None
) -> tuple[FirmwareBundle | None, str]:
    """Return the bundle that a machine is meant to run, and why in words; None: nothing is wanted.

    Parameters
    ----------
    arms : iterable of Arm, optional
        Its places in open rollouts, the newest first; by default what the settings' reader says.
    """
    reader = adapters.open_arms()
    told = list(arms if arms is not None else reader.of(machine.pk) if reader else ())
    treated = next((arm for arm in told if arm.bundle is not None), None)
    if treated is not None:
        bundle = FirmwareBundle.objects.get(pk=cast(int, treated.bundle))
        why = f"{treated.arm} of the open rollout {treated.name!r}, which puts {bundle} on it"
        return bundle, why
    return _of_pool(machine, told, now=now)


def _of_pool(
    machine: Machine, arms: list[Arm], *, now: datetime
) -> tuple[FirmwareBundle | None, str]:
    wanted = desired_bundles(at=now)
    own = (machine.platform_id, machine.pool)
    place = own if own in wanted else (machine.platform_id, "")
    where = f"pool {machine.pool}" if place[1] else f"every pool of {machine.platform}"
    found = (
        FirmwareBundle.objects.filter(pk__in=[wanted[place]]).first() if place in wanted else None
    )
    waiting = next((arm for arm in arms if arm.bundle is None), None)
    if waiting is None:
        if found is None:
            return None, f"no bundle is set for {machine.platform} in pool {machine.pool!r}"
        return found, f"{found} is set for {where}"
    stays = f"{waiting.arm} of the open rollout {waiting.name!r}: it stays on what it ran"
    if found is None or found.pk != waiting.new:
        set_for = f"{found} is set for {where}" if found else "no bundle is set for its pool"
        return found, f"{stays}; {set_for}"
    old = _before(place, found, now=now)
    if old is None:
        return None, f"{stays}, and before {found} no bundle was set for {where}"
    return old, f"{stays}; before {found}, {old} was set for {where}"


def _before(
    place: tuple[int, str], bundle: FirmwareBundle, *, now: datetime
) -> FirmwareBundle | None:
    rows = DesiredBundle.objects.filter(platform=place[0], pool=place[1], since__lte=now)
    older = rows.exclude(bundle=bundle).exclude(bundle=None).select_related("bundle")
    row = older.order_by("-pk").first()
    return None if row is None else row.bundle


def intended(machine: Machine, *, now: datetime, arms: Iterable[Arm] | None = None) -> Intended:
    """Return what a machine is meant to run and how it stands to it.

    `incompatible` where it cannot come there: the bundle is not made for its platform, or an
    image may not replace what runs (floor, downgrade). Where no bundle is wanted nothing is known
    to be right, so the standing is `unknown`.
    """
    bundle, why = intended_bundle(machine, now=now, arms=arms)
    if bundle is None:
        return Intended(machine.name, None, why, Drift(Standing.UNKNOWN, why))
    return Intended(machine.name, bundle, why, standing(machine, bundle, now=now))


def standing(machine: Machine, bundle: FirmwareBundle, *, now: datetime) -> Drift:
    """Return how a machine stands to a bundle; `incompatible` where it cannot come to it."""
    if not bundle.platforms.filter(pk=machine.platform_id).exists():
        reason = f"{bundle} is not made for {machine.platform}"
        return Drift(Standing.INCOMPATIBLE, reason)
    images = list(bundle.images.order_by("places__position"))
    held = versions_as_of(machine, at=now)
    if reason := _obstacle(images, held):
        return Drift(Standing.INCOMPATIBLE, reason)
    return drift(held, wanted=[Wanted(one.kind, one.version, one.scheme) for one in images])


def _obstacle(images: Iterable[FirmwareImage], held: Mapping[str, str]) -> str:
    """Return why one of the images cannot replace what runs; what is not known does not stop it."""
    for image in images:
        kept = list(FirmwareImage.objects.filter(kind=image.kind))
        for part, version in held.items():
            if part.partition("/")[0] != image.kind or version.startswith(DISPUTED):
                continue
            same = (one for one in kept if is_same(one.version, version, scheme=image.scheme))
            before = next((as_image(one) for one in same), None)
            said = obstacle(version, as_image(image), before, allow_unordered=True)
            if said:
                return f"{part}: {said.removeprefix('blocked: ')}"
    return ""


def as_image(image: FirmwareImage) -> Image:
    """Return what going to an image depends on."""
    return Image(
        kind=image.kind,
        version=image.version,
        scheme=image.scheme,
        vendor=image.vendor,
        activation=image.activation,
        is_downgrade_allowed=image.is_downgrade_allowed,
        floor_version=image.floor_version,
    )
