"""What machines claim to be: each claim with its time, and refused where it is another's."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db import connection, transaction
from django.utils import timezone

from fleet import identity, parts
from fleet.bulk import insert_filled
from fleet.errors import ClaimRefused
from fleet.identity import Claim
from fleet.models import Machine, MachineClaim, PartSwap

Key = tuple[str, str]
_CLAIMS_LOCK = 0x434C41494D  # any number that nothing else in the database locks
#: Claims that the machine's row shows too.
_SHOWN = {"serial": "serial", "bmc_address": "bmc_address"}


@transaction.atomic
def claim(
    machine: Machine, claims: Iterable[Claim], *, actor: str, now: datetime
) -> list[MachineClaim]:
    """Write down what a machine claims from now on, by a person; an empty value ends a claim.

    Safe to repeat: what is claimed already is not claimed again.

    Raises
    ------
    ClaimRefused
        If a value is none of its kind, or another machine claims it.
    """
    wanted = [identity.normal(one) for one in claims]
    Machine.objects.select_for_update().get(pk=machine.pk)
    hold_claims()
    refuse_taken({machine.pk: wanted})
    return write(machine, wanted, source=MachineClaim.Source.PERSON, actor=actor, now=now)


@transaction.atomic
def observe_claims(
    machine: Machine, claims: Iterable[Claim], *, source: str, now: datetime
) -> list[MachineClaim]:
    """Write down what a BMC or host says that a machine is; a conflict stays, to be shown.

    Safe to repeat: what is claimed already is not claimed again.
    """
    Machine.objects.select_for_update().get(pk=machine.pk)
    return write(machine, map(identity.normal, claims), source=source, actor="", now=now)


def hold_claims() -> None:
    """Let nobody else claim a value or place a part until the transaction ends.

    What is free is read, not constrained: a value may be claimed by a BMC twice, to be shown. The
    caller holds its machine's row already and takes no other one after this. On SQLite whoever
    writes is alone.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_CLAIMS_LOCK])


def refuse_taken(wanted: Mapping[int, Sequence[Claim]]) -> None:
    """Refuse values that other machines claim, or that two of these would claim."""
    reasons = [
        f"{one.kind} {one.value} is claimed by {holder}; end that claim first"
        for machine, own in wanted.items()
        for one in own
        for holder in parts.claimants(one.kind, one.value)
        if one.value and holder.pk != machine
    ]
    if reasons:
        raise ClaimRefused(reasons)


def write(
    machine: Machine,
    claims: Iterable[Claim],
    *,
    source: str,
    actor: str,
    now: datetime,
    swap: PartSwap | None = None,
) -> list[MachineClaim]:
    """Append what differs from what stands; the caller holds the machine's row."""
    standing = parts.standing_claims(machine, at=now)
    made = []
    for one in claims:
        if standing.get((one.kind, one.slot), "") == one.value:
            continue
        made.append(
            MachineClaim.objects.create(
                machine=machine,
                kind=one.kind,
                slot=one.slot,
                value=one.value,
                since=now,
                source=source,
                actor=actor,
                swap=swap,
                recorded_at=timezone.now(),
            )
        )
        standing[one.kind, one.slot] = one.value
        _show(machine, one)
    return made


def _show(machine: Machine, claim: Claim) -> None:
    """Let the machine's row say what it claims, where it has a column for it."""
    column = _SHOWN.get(claim.kind)
    if column and not claim.slot:
        Machine.objects.filter(pk=machine.pk).update(**{column: claim.value})
        setattr(machine, column, claim.value)


def register_claims(machines: Sequence[Machine], *, actor: str, now: datetime) -> None:
    """Let new machines claim what they were registered with."""
    recorded_at = timezone.now()
    columns = ("machine_id", "kind", "value", "since", "source", "actor", "recorded_at")
    source = MachineClaim.Source.REGISTER.value
    rows = [
        (machine.pk, kind, value, now, source, actor, recorded_at)
        for machine in machines
        for kind, column in _SHOWN.items()
        if (value := identity.normal(Claim(kind, getattr(machine, column))).value)
    ]
    insert_filled(MachineClaim, columns, rows)
