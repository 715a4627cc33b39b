"""Node probes: measure machines of both arms of an open wave by themselves, in idle gaps.

What a synchronous job does is the pace of its slowest machine; a fixed test of one machine is its
own. Machines of both arms are probed together, so that time of day, load and temperature are the
same for both, and the prober is not told which is which. The figures become observations of the
workload `node_probe`, which only a guardrail that names it reads.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from fleet import adapters
from fleet import services as fleet
from fleet.adapters import Probed, Report
from fleet.errors import AdapterFailed
from fleet.lifecycle import State
from rollouts.analysis.policy import NODE_PROBE
from rollouts.lifecycle import Status, WaveStatus
from rollouts.models import Membership, ProbeRound, Wave
from rollouts.planning import probing

logger = logging.getLogger(__name__)

#: Machines that are probed at one instant.
MOST_AT_ONCE = 200
#: Between two looks at who is idle (by the clock).
POLL = timedelta(minutes=10)
#: A prober that has not answered by then has nothing to say of that round any more.
_PATIENCE = timedelta(minutes=30)
_OPEN = (WaveStatus.INSTALLING, WaveStatus.SETTLING, WaveStatus.OBSERVING)


def carry_on(wave: Wave, *, now: datetime) -> None:
    """Take in what was measured, and begin the next round if both arms have idle machines.

    Safe to repeat: a round is begun by its key and counts once. Never inside a transaction.
    """
    prober = adapters.prober() if _is_probed(wave) else None
    if prober is None:
        return
    for probe in wave.probes.filter(ended_at=None):
        _take_in(prober, probe, now=now)
    begun = _begin(wave, now=now)
    if begun is not None:
        _ask(prober, begun, now=now)


def next_due(wave: Wave, *, now: datetime) -> datetime | None:
    """Return when to look again at a wave's probes; None where the plan asks for none."""
    if not _is_probed(wave) or wave.clock_start is None:
        return None
    running = wave.probes.filter(ended_at=None).first()
    if running is not None:
        return max(running.begun_at + probing.LONGEST, now + timedelta(minutes=1))
    every = _every(wave)
    period = probing.period_at(now, origin=wave.clock_start, every=every)
    probed = sum(map(len, wave.probes.filter(period=period).values_list("machines", flat=True)))
    following = wave.clock_start + (period + 1) * every
    if probed >= wave.members.count():
        return max(following, now + timedelta(minutes=1))
    return max(min(now + POLL, following), wave.clock_start)


def _every(wave: Wave) -> timedelta:
    return timedelta(hours=wave.rollout.plan["node_probe"]["every_hours"])


def _is_probed(wave: Wave) -> bool:
    return (
        bool(wave.rollout.plan.get("node_probe"))
        and wave.kind == Wave.Kind.CANARY
        and wave.status in _OPEN
        and wave.rollout.status == Status.RUNNING
    )


# --- one round ---------------------------------------------------------------------------------


@transaction.atomic
def _begin(wave: Wave, *, now: datetime) -> ProbeRound | None:
    """Write down the next round, or nothing while one runs or an arm has nobody to probe."""
    locked = Wave.objects.select_for_update().select_related(None).get(pk=wave.pk)
    if locked.clock_start is None or locked.clock_start > now:
        return None
    if locked.probes.filter(ended_at=None).exists():
        return None
    period = probing.period_at(now, origin=locked.clock_start, every=_every(wave))
    machines = _whom(locked, period, now=now)
    if not machines:
        return None
    number = locked.probes.count() + 1
    return ProbeRound.objects.create(
        wave=wave, number=number, period=period, machines=machines, begun_at=now
    )


def _whom(wave: Wave, period: int, *, now: datetime) -> list[str]:
    """Choose among idle members whose clock runs and who were not probed in this period.

    Those that were probed last longest ago come first; the arms are told apart only to give each
    the same part.
    """
    last: dict[str, int] = {}
    own = wave.probes.filter(begun_at__gte=wave.clock_start).order_by("number")
    for number, names in own.values_list("period", "machines"):
        last |= dict.fromkeys(names, number)
    members = wave.members.filter(block__clock_start__lte=now)
    idle = members.filter(
        machine__state=State.IN_SERVICE, machine__may_take_work=True, machine__job=""
    )
    waiting: dict[str, list[str]] = {arm.value: [] for arm in Membership.Arm}
    for name, arm in idle.values_list("machine__name", "arm"):
        if last.get(name, -1) < period:
            waiting[arm].append(name)
    order = [
        sorted(names, key=lambda name: (last.get(name, -1), name)) for names in waiting.values()
    ]
    canaries, controls = (wave.members.filter(arm=arm).count() for arm in Membership.Arm)
    return probing.choose(order[0], order[1], sizes=(canaries, controls), most=MOST_AT_ONCE)


def _take_in(prober: adapters.Prober, probe: ProbeRound, *, now: datetime) -> None:
    """Record what a round measured once its time is over; after much longer, that nothing came."""
    if now < probe.begun_at + probing.LONGEST:
        return
    found = _ask(prober, probe, now=now)
    if found is None and now < probe.begun_at + _PATIENCE:
        return
    _record(probe, found or (), now=now)


def _ask(prober: adapters.Prober, probe: ProbeRound, *, now: datetime) -> Sequence[Probed] | None:
    """Begin a round or ask for its figures; None where the prober does not answer."""
    key = f"probe-{probe.wave_id}-{probe.number}"
    try:
        return prober.probe(probe.machines, key=key, begun=probe.begun_at, now=now)
    except (OSError, AdapterFailed) as error:
        logger.warning("%s: the prober did not answer: %s", probe, type(error).__name__)
        return None


@transaction.atomic
def _record(probe: ProbeRound, found: Sequence[Probed], *, now: datetime) -> None:
    """Store the figures of a round once, as observations of the machines' own workload."""
    asked = set(probe.machines)
    kept = [one for one in found if one.machine in asked and _is_within(one, probe)]
    changed = ProbeRound.objects.filter(pk=probe.pk, ended_at=None).update(
        ended_at=now, measured=len(kept)
    )
    if changed and kept:
        key = f"probe-{probe.wave_id}-{probe.number}"
        fleet.record([_report(one, key) for one in kept], source=NODE_PROBE, key=key, now=now)


def _is_within(one: Probed, probe: ProbeRound) -> bool:
    """Tell whether a figure is of this round: neither of before it nor of too long a test."""
    return probe.begun_at <= one.start < one.end <= probe.begun_at + probing.LONGEST


def _report(one: Probed, key: str) -> Report:
    return Report(
        "observation",
        {
            "machine": one.machine,
            "start": one.start,
            "end": one.end,
            "in_service_seconds": (one.end - one.start).total_seconds(),
            "throughput": one.throughput,
            "workload": NODE_PROBE,
            "boot_id": one.boot_id,
            "source_key": f"{key}.{one.machine}",
        },
    )
