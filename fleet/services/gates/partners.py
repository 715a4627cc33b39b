"""Partners for checks over several machines: known-good, alike, reserved, and always given back."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Case, Exists, OuterRef, Value, When

from fleet import adapters, selectors
from fleet.errors import IllegalGateMove, NoPartner
from fleet.faults import counted_faults
from fleet.gate_state import check_states
from fleet.lifecycle import State
from fleet.models import Cordon, Gate, Machine
from fleet.repair.gating import UNFINISHED, Status
from fleet.services.gates.records import closed, lock, say
from fleet.services.lifecycle import cordon, lift_cordon

OWNER = "gate:"
#: A machine that had a counted fault so lately is not known to be good.
GOOD_FOR = timedelta(days=7)
_MOST_LOOKED_AT = 200


@transaction.atomic
def reserve_partner(gate: Gate, *, actor: str, now: datetime, user: User | None = None) -> Machine:
    """Reserve a machine for the gate's checks over several machines; safe to repeat.

    It is idle, of the same platform and versions, in service without a fault lately, and under no
    comparison. A cordon of the gate's own keeps work away from it until it is given back.

    Raises
    ------
    NoPartner
        If there is none now; the message says what each kind of machine lacked.
    """
    gate = lock(gate)
    if Status(gate.status) not in UNFINISHED:
        raise IllegalGateMove(closed(gate))
    if gate.partner is not None:
        return gate.partner
    for machine in _candidates(gate, now=now):
        held = Machine.objects.select_for_update().get(pk=machine.pk)
        if not held.may_take_work or held.job:
            continue
        reason = f"partner of {gate.machine} in gate {gate.pk}"
        cordon(held, owner=f"{OWNER}{gate.pk}", reason=reason[:300], now=now)
        Gate.objects.filter(pk=gate.pk).update(partner=held)
        say(gate, "partner", f"{held} is reserved", actor=actor, user=user, now=now)
        return held
    raise NoPartner(
        f"no idle machine of {gate.machine.platform} runs the same versions, had no fault for "
        f"{GOOD_FOR.days} days and is under no comparison"
    )


def _candidates(gate: Gate, *, now: datetime) -> Iterator[Machine]:
    """Yield machines that may be lent, those at the same leaf first."""
    faults = counted_faults().filter(machine=OuterRef("pk"), time__gt=now - GOOD_FOR)
    near = Case(When(leaf=gate.machine.leaf, then=Value(0)), default=Value(1))
    found = (
        Machine.objects.filter(
            platform=gate.machine.platform_id,
            state=State.IN_SERVICE,
            may_take_work=True,
            job="",
        )
        .exclude(pk=gate.machine_id)
        .exclude(watch_until__gt=now)
        .exclude(Exists(faults))
        .order_by(near, "name")
    )
    alike = _alike(gate, list(found[:_MOST_LOOKED_AT]))
    yield from (machine for machine in alike if not _is_compared(machine))


def _is_compared(machine: Machine) -> bool:
    """Tell whether an open rollout compares the machine with others; a drill would disturb that."""
    reader = adapters.open_arms()
    return reader is not None and any(arm.is_compared for arm in reader.of(machine.pk))


def _alike(gate: Gate, machines: Sequence[Machine]) -> Iterator[Machine]:
    """Yield those that run what the gate's machine runs, of what its bundle names."""
    kinds = set(gate.bundle.places.values_list("image__kind", flat=True)) if gate.bundle else None
    keys = [gate.machine_id, *(one.pk for one in machines)]
    versions = selectors.versions_now(keys, kinds=kinds)
    yield from (one for one in machines if versions[one.pk] == versions[gate.machine_id])


def return_partners(*, now: datetime) -> int:
    """Give back every machine whose gate is over or needs it no more; return how many.

    Safe to repeat: whatever died in between, the cordon says whose it is.
    """
    standing = Cordon.objects.filter(owner__startswith=OWNER, lifted_at=None)
    count = 0
    for own in standing.select_related("machine").order_by("pk"):
        if not _is_needed(own):
            lift_cordon(own, owner=own.owner, now=now)
            count += 1
    return count


def _is_needed(own: Cordon) -> bool:
    key = own.owner.removeprefix(OWNER)
    gate = Gate.objects.filter(pk=int(key)).first() if key.isdigit() else None
    if gate is None or Status(gate.status) not in UNFINISHED or gate.partner_id != own.machine_id:
        return False
    return any(one.check.needs_partner and not one.is_passed for one in check_states(gate))
