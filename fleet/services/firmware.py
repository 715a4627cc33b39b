"""Images, bundles, and the version history that read-back writes."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from fleet import selectors
from fleet.adapters import Reading
from fleet.errors import BundleNotReady, SelfApproval
from fleet.firmware import versions
from fleet.models import (
    BundleImage,
    BundleStatus,
    DesiredBundle,
    FirmwareBundle,
    FirmwareImage,
    FirmwareRecord,
    Machine,
    Platform,
)

_WITNESSES = (FirmwareRecord.Source.BMC, FirmwareRecord.Source.HOST)
_TICK = timedelta(microseconds=1)


# --- read-back ---------------------------------------------------------------


@transaction.atomic
def record_readings(
    machine: Machine,
    readings: Sequence[Reading],
    *,
    now: datetime,
    evidence: Mapping[str, Any] | None = None,
) -> list[FirmwareRecord]:
    """Append what read-back says where it differs from what the history says now.

    Where BMC and host report different versions of a component, both are appended and marked
    as disputed. Safe to repeat: the same readings append nothing.

    Parameters
    ----------
    readings : sequence of Reading
        What one visit to the machine read; `stage` is `staged`, `active` or `committed`.
    evidence : mapping, optional
        Kept with each appended record, beside the boot id of its reading.
    """
    Machine.objects.select_for_update().only("pk").get(pk=machine.pk)
    kinds = {reading.kind for reading in readings}
    current = _current_records(machine, kinds)
    schemes = selectors.version_schemes(kinds)
    places = sorted(readings, key=_place)
    new = [
        record
        for place, group in groupby(places, key=_place)
        for record in _changes(
            machine,
            list(group),
            current=current.get(place, []),
            scheme=schemes.get(place[0], versions.Scheme.PLAIN),
            now=now,
            evidence=evidence or {},
        )
    ]
    for record in new:
        record.save()
    return new


def _place(item: Reading | FirmwareRecord) -> tuple[str, str, str]:
    return item.kind, item.slot, str(item.stage)


def _current_records(
    machine: Machine, kinds: Collection[str]
) -> dict[tuple[str, str, str], list[FirmwareRecord]]:
    """Return the records that hold now: one per place, or the two of a dispute."""
    current: dict[tuple[str, str, str], list[FirmwareRecord]] = {}
    for record in machine.firmware.filter(kind__in=kinds).order_by("since", "pk"):
        held = current.get(_place(record), [])
        joins = record.is_disputed and held and held[-1].is_disputed
        is_pair = joins and held[-1].since == record.since
        current[_place(record)] = [*held, record] if is_pair else [record]
    return current


def _changes(
    machine: Machine,
    readings: Sequence[Reading],
    *,
    current: Sequence[FirmwareRecord],
    scheme: str,
    now: datetime,
    evidence: Mapping[str, Any],
) -> list[FirmwareRecord]:
    """Return the records to append for one component and stage: none, one, or a dispute's two."""
    first, *others = readings
    against = [one for one in others if not _is_same(one.version, first.version, scheme)]
    told = [first, against[0]] if against else [first]
    if against and against[0].witness == first.witness:
        raise ValueError(
            f"{first.witness} reads {first.kind} as {first.version} and as {against[0].version}; "
            "one version per witness, component and stage is needed"
        )
    is_disputed = bool(against)
    if current and _repeats(readings, current, is_disputed=is_disputed, scheme=scheme):
        return []
    # The clock may stand still between two visits; the later one still comes after.
    since = max(now, current[-1].since + _TICK) if current else now
    return [
        FirmwareRecord(
            machine=machine,
            kind=reading.kind,
            slot=reading.slot,
            stage=reading.stage,
            version=reading.version,
            since=since,
            source=_source(reading),
            is_disputed=is_disputed,
            evidence={**evidence, "boot_id": reading.boot_id},
            recorded_at=timezone.now(),
        )
        for reading in told
    ]


def _source(reading: Reading) -> str:
    if reading.witness not in _WITNESSES:
        raise ValueError(f"witness is {reading.witness!r}, one of {', '.join(_WITNESSES)} is known")
    return str(reading.witness)


def _is_same(one: str, other: str, scheme: str) -> bool:
    return one == other or versions.is_same(one, other, scheme=scheme)


def _repeats(
    readings: Sequence[Reading],
    current: Sequence[FirmwareRecord],
    *,
    is_disputed: bool,
    scheme: str,
) -> bool:
    """Tell whether the readings say what the history says now."""
    if not current[-1].is_disputed:
        return not is_disputed and _is_same(readings[0].version, current[-1].version, scheme)
    # One witness that only repeats its own claim does not settle a dispute.
    claims = {record.source: record.version for record in current}
    return all(
        _is_same(reading.version, claims.get(_source(reading), ""), scheme) for reading in readings
    )


# --- images and bundles ------------------------------------------------------


def create_image(*, kind: str, version: str, **fields: Any) -> FirmwareImage:
    """Create one image; `fields` are those of `FirmwareImage`."""
    image = FirmwareImage(kind=kind, version=version, **fields)
    image.full_clean()
    image.save()
    return image


@transaction.atomic
def create_bundle(
    *,
    name: str,
    version: str,
    images: Sequence[FirmwareImage],
    platforms: Sequence[Platform],
    author: User | None,
    now: datetime,
    known_issues: Sequence[str] = (),
    required_pairs: Mapping[str, str] | None = None,
    on_partial: str = FirmwareBundle.OnPartial.QUARANTINE,
) -> FirmwareBundle:
    """Create a draft bundle of the images in the given order.

    Raises
    ------
    BundleNotReady
        If it has no images or no platforms, or two images of one kind.
    """
    _refuse_bad_bundle(images, platforms, label=f"{name} {version}")
    bundle = FirmwareBundle.objects.create(
        name=name,
        version=version,
        author=author,
        created_at=now,
        known_issues=list(known_issues),
        required_pairs=dict(required_pairs or {}),
        on_partial=on_partial,
    )
    bundle.platforms.set(platforms)
    BundleImage.objects.bulk_create(
        BundleImage(bundle=bundle, image=image, position=position)
        for position, image in enumerate(images, start=1)
    )
    return bundle


def _refuse_bad_bundle(
    images: Sequence[FirmwareImage], platforms: Sequence[Platform], *, label: str
) -> None:
    if not images:
        raise BundleNotReady(f"bundle {label} has no images; at least one is needed")
    if not platforms:
        raise BundleNotReady(f"bundle {label} has no platforms; at least one is needed")
    parts = [(image.kind, image.vendor) for image in images]
    if len(set(parts)) < len(parts):
        raise BundleNotReady(f"bundle {label} has two images of one kind and vendor: {parts}")


@transaction.atomic
def approve_bundle(bundle: FirmwareBundle, *, approver: User, now: datetime) -> FirmwareBundle:
    """Approve a draft and freeze it under the digest of its content.

    Raises
    ------
    SelfApproval
        If the author approves, unless `ALLOW_SELF_APPROVAL` is set.
    BundleNotReady
        If the bundle is no draft, or has no images.
    """
    if bundle.author_id == approver.pk and not settings.ALLOW_SELF_APPROVAL:
        raise SelfApproval(
            f"{approver} wrote bundle {bundle} and cannot approve it; "
            "ALLOW_SELF_APPROVAL lifts this for a site with one person"
        )
    if not bundle.places.exists():
        raise BundleNotReady(f"bundle {bundle} has no images; at least one is needed")
    return _move_bundle(
        bundle,
        old=BundleStatus.DRAFT,
        status=BundleStatus.APPROVED,
        digest=bundle_digest(bundle),
        approver=approver,
        approved_at=now,
    )


def withdraw_bundle(bundle: FirmwareBundle, *, actor: User, now: datetime) -> FirmwareBundle:
    """Withdraw an approved bundle: no rollout of it starts any more; its content stays frozen.

    Raises
    ------
    BundleNotReady
        If the bundle is not approved.
    """
    return _move_bundle(
        bundle,
        old=BundleStatus.APPROVED,
        status=BundleStatus.WITHDRAWN,
        withdrawer=actor,
        withdrawn_at=now,
    )


def _move_bundle(bundle: FirmwareBundle, *, old: BundleStatus, **changes: Any) -> FirmwareBundle:
    """Change the status by compare-and-set; of two people one wins."""
    if not FirmwareBundle.objects.filter(pk=bundle.pk, status=old).update(**changes):
        bundle.refresh_from_db()
        raise BundleNotReady(
            f"bundle {bundle} is {bundle.status}; only one that is {old} can become "
            f"{changes['status']}"
        )
    bundle.refresh_from_db()
    return bundle


def set_desired_bundle(
    platform: Platform,
    *,
    pool: str = "",
    bundle: FirmwareBundle | None,
    actor: User,
    reason: str,
    now: datetime,
) -> DesiredBundle:
    """Say which bundle a platform's machines are meant to run, in one pool or in every other.

    It moves no firmware: it is what drift is measured against. None takes a pool's row back.

    Raises
    ------
    BundleNotReady
        If the bundle is not approved, or not made for the platform.
    """
    if bundle is not None:
        if bundle.status != BundleStatus.APPROVED:
            raise BundleNotReady(f"bundle {bundle} is {bundle.status}; an approved one is needed")
        if not bundle.platforms.filter(pk=platform.pk).exists():
            made = ", ".join(bundle.platforms.values_list("name", flat=True))
            raise BundleNotReady(f"bundle {bundle} is made for {made}, not for {platform}")
    return DesiredBundle.objects.create(
        platform=platform,
        pool=pool,
        bundle=bundle,
        since=now,
        actor=actor,
        reason=reason,
        recorded_at=timezone.now(),
    )


def bundle_digest(bundle: FirmwareBundle) -> str:
    """Return the SHA-256 of the bundle's content in canonical JSON."""
    skipped = {"id"}
    images = [
        {
            column.name: getattr(place.image, column.name)
            for column in FirmwareImage._meta.concrete_fields
            if column.name not in skipped
        }
        for place in bundle.places.select_related("image").order_by("position")
    ]
    content = {
        "name": bundle.name,
        "version": bundle.version,
        "platforms": sorted(bundle.platforms.values_list("name", flat=True)),
        "images": images,
        "required_pairs": bundle.required_pairs,
        "on_partial": bundle.on_partial,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
