"""Firmware that others put onto the machines of an open comparison: found, read back, recorded.

Such a machine keeps its arm; the wave's evidence says what came onto it, and that the comparison
is impure (`rollouts.contamination`).
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.utils import timezone

from fleet import adapters
from fleet import services as fleet
from fleet.errors import AdapterFailed
from fleet.firmware.versions import is_same
from fleet.models import FirmwareRecord, Observation
from rollouts.lifecycle import WaveStatus
from rollouts.models import Assignment, Contamination, Membership, Wave

_OPEN = (WaveStatus.INSTALLING, WaveStatus.SETTLING, WaveStatus.OBSERVING, WaveStatus.HELD)
_Stage = FirmwareRecord.Stage
#: Machines that one visit reads back.
MOST_READ = 50


def open_waves() -> Iterable[Wave]:
    """Return the waves whose comparison is open."""
    return Wave.objects.filter(status__in=_OPEN).select_related("rollout__bundle").order_by("pk")


def read_rebooted(wave: Wave, *, now: datetime) -> int:
    """Read back the members that hold a staged image and have booted since; return how many.

    Whoever booted them may have activated it. A machine that does not answer is asked next time.
    """
    done = 0
    for record in _staged_and_booted(wave)[:MOST_READ]:
        try:
            readings = adapters.installer().read_versions(record.machine.name, now=now)
        except (OSError, AdapterFailed):
            continue
        if readings:
            evidence = {"noticed": "a boot by others while an image was staged"}
            fleet.record_readings(record.machine, readings, now=now, evidence=evidence)
            done += 1
    return done


def _staged_and_booted(wave: Wave) -> list[FirmwareRecord]:
    """Return the images that stand staged on members without an attempt and reported a new boot."""
    kinds = wave.rollout.bundle.images.values_list("kind", flat=True)
    in_flight = wave.rollout.attempts.filter(finished_at=None).values("machine")
    part = {"machine": OuterRef("machine"), "kind": OuterRef("kind"), "slot": OuterRef("slot")}
    later = FirmwareRecord.objects.order_by("-since", "-pk")
    rows = (
        FirmwareRecord.objects.filter(
            machine__in=wave.members.values("machine"), kind__in=list(kinds), stage=_Stage.STAGED
        )
        .exclude(machine__in=in_flight)
        .annotate(
            newest=Subquery(later.filter(stage=_Stage.STAGED, **part).values("pk")[:1]),
            runs=Subquery(later.filter(stage=_Stage.ACTIVE, **part).values("version")[:1]),
            boot=Subquery(
                Observation.objects.filter(machine=OuterRef("machine"))
                .exclude(boot_id="")
                .order_by("-end")
                .values("boot_id")[:1]
            ),
        )
        .filter(pk=F("newest"))
        .exclude(version="")
        .exclude(version=F("runs"))
        .exclude(boot=None)
        .select_related("machine")
        .order_by("machine")
    )
    return [record for record in rows if record.boot != record.evidence.get("boot_id")]


@transaction.atomic
def record_contamination(wave: Wave, *, now: datetime) -> list[Contamination]:
    """Record what came onto the wave's machines since it started and its rollout did not install.

    Safe to repeat: a version of a part counts once. Among the controls every new version is one;
    among the canaries one that is neither the bundle's nor the one before.
    """
    if wave.started_at is None:
        return []
    arms = dict(wave.members.values_list("machine_id", "arm"))
    known = set(wave.contaminations.values_list("machine_id", "kind", "slot", "at"))
    return [
        Contamination.objects.create(
            wave=wave,
            machine_id=record.machine_id,
            arm=arms[record.machine_id],
            kind=record.kind,
            slot=record.slot,
            version=record.version,
            was_staged=was_staged,
            boot_id=record.evidence.get("boot_id", ""),
            at=record.since,
            recorded_at=timezone.now(),
        )
        for record, was_staged in _foreign(wave, arms)
        if (record.machine_id, record.kind, record.slot, record.since) not in known
    ]


def _foreign(wave: Wave, arms: dict[int, str]) -> Iterator[tuple[FirmwareRecord, bool]]:
    """Yield what others put there, each with whether it had been staged before."""
    before = _versions_before(wave)
    targets = dict(wave.rollout.bundle.images.values_list("kind", "version"))
    schemes = dict(wave.rollout.bundle.images.values_list("kind", "scheme"))
    for record in _new_versions(wave, list(targets)):
        if arms[record.machine_id] == Membership.Arm.CONTROL:
            yield record, record.was_staged == record.version
            continue
        own = [targets[record.kind], *before.get(record.machine_id, {}).values()]
        if not any(is_same(record.version, one, scheme=schemes[record.kind]) for one in own):
            yield record, record.was_staged == record.version


def _versions_before(wave: Wave) -> dict[int, dict[str, str]]:
    places = Assignment.objects.filter(rollout=wave.rollout).exclude(previous_versions={})
    return dict(places.values_list("machine_id", "previous_versions"))


def _new_versions(wave: Wave, kinds: Sequence[str]) -> Iterable[Any]:
    """Return what came to run on members since the wave started, and follows another version."""
    part = {
        "machine": OuterRef("machine"),
        "kind": OuterRef("kind"),
        "slot": OuterRef("slot"),
        "since__lt": OuterRef("since"),
    }
    earlier = FirmwareRecord.objects.filter(**part).order_by("-since", "-pk")
    return (
        FirmwareRecord.objects.filter(
            machine__in=wave.members.values("machine"),
            kind__in=kinds,
            stage=_Stage.ACTIVE,
            since__gt=wave.started_at,
            is_disputed=False,
        )
        .exclude(version="")
        .exclude(evidence__has_key="attempt", machine__in=_canaries(wave))
        .annotate(
            ran=Subquery(earlier.filter(stage=_Stage.ACTIVE).values("version")[:1]),
            was_staged=Subquery(earlier.filter(stage=_Stage.STAGED).values("version")[:1]),
        )
        .exclude(ran=None)
        .exclude(ran=F("version"))
        .order_by("since", "pk")
    )


def _canaries(wave: Wave) -> QuerySet[Membership, Any]:
    return wave.members.filter(arm=Membership.Arm.CANARY).values("machine")
