"""Repairs travel both ways with ticket systems, so that nobody has to work in two places.

Out: what a system is told is how the repair stands now and every step since the last one that it
knows. A system that is away is told later; the same steps carry the same identifier. In: what a
system says is done by the same services as a person's form, once per message.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.db.models.functions import Greatest
from django.utils import timezone

from fleet import clock, leases
from fleet.adapters import webhook
from fleet.errors import AddressRefused, MessageConflict, TicketRefused
from fleet.identity import Swap
from fleet.messages import signed_headers
from fleet.models import Repair, RepairEvent, TicketLink, TicketReceipt
from fleet.repair.steps import (
    TICKET_STATES,
    TICKET_STEPS,
    Status,
    Step,
    steps_from,
    ticket_states_from,
)
from fleet.services import repairs

ORIGIN = "coalmine"
MOST_AT_ONCE = 50  # links that one run looks after
MOST_LINKED = 200  # repairs that one run makes known to a new system
LONGEST_RUN_SECONDS = 20.0
FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(hours=1)
MOST_TICKET_CHARACTERS = 60
MOST_STEPS = 100  # of a repair, in one message
_DOUBLINGS = 7  # until the longest wait

Post = Callable[..., webhook.Answer]


# --- out ------------------------------------------------------------------------------------------


def tell_tickets(*, post: Post = webhook.post) -> int:
    """Tell ticket systems of the repairs whose newest steps they do not know; return how many.

    Never inside a transaction. Safe to repeat and to race: a link is leased while it is told. A
    system that does not answer is asked once in a run.
    """
    _link_open_repairs()
    end = time.monotonic() + LONGEST_RUN_SECONDS
    wall = clock.steady_time()
    due = TicketLink.objects.filter(
        Q(next_at=None) | Q(next_at__lte=wall), leases.free(wall=wall), newest__gt=F("told")
    ).order_by(F("next_at").asc(nulls_first=True), "pk")
    told, away = 0, set[str]()
    for key, system in list(due.values_list("pk", "system")[:MOST_AT_ONCE]):
        if system in away or time.monotonic() > end:
            continue
        try:
            told += _tell(key, post=post)
        except OSError:
            away.add(system)
    return told


def _link_open_repairs() -> None:
    """Let a ticket system that is new to the settings know of the repairs that are open."""
    for system in (name for name, address in settings.TICKET_SYSTEMS.items() if address):
        known = TicketLink.objects.filter(system=system, repair=OuterRef("pk"))
        steps = RepairEvent.objects.filter(repair=OuterRef("pk"), kind__in=repairs.TOLD)
        unknown = Repair.objects.filter(~Exists(known), status__in=repairs.OPEN).annotate(
            newest=Subquery(steps.order_by("-pk").values("pk")[:1])
        )
        rows = unknown.filter(newest__isnull=False).values_list("pk", "newest")[:MOST_LINKED]
        TicketLink.objects.bulk_create(
            [TicketLink(system=system, repair_id=key, newest=newest) for key, newest in rows],
            ignore_conflicts=True,
        )


def _tell(key: int, *, post: Post) -> bool:
    """Tell of one repair; a system that does not answer raises, once that is written down."""
    link = _leased(key)
    if link is None:
        return False
    newest = link.newest
    try:
        answer = _posted(link, address=settings.TICKET_SYSTEMS.get(link.system, ""), post=post)
    except AddressRefused as error:
        _put_off(link, said=str(error))
        return False
    except OSError as error:
        _put_off(link, said=f"does not answer: {type(error).__name__}")
        raise
    if not answer.is_taken:
        _put_off(link, said=f"answered {answer.status}", wait=answer.retry_after)
        return False
    _told(link, newest=newest, answer=answer)
    return True


def _leased(key: int) -> TicketLink | None:
    wall = clock.steady_time()
    token = secrets.token_hex(16)
    own = TicketLink.objects.filter(leases.free(wall=wall), pk=key, newest__gt=F("told"))
    if not own.update(lease_token=token, leased_until=wall + leases.LEASE):
        return None
    links = TicketLink.objects.select_related("repair__machine", "repair__technician")
    return links.get(pk=key)


def _posted(link: TicketLink, *, address: str, post: Post) -> webhook.Answer:
    if not address:
        raise AddressRefused(f"ticket system {link.system} takes no messages by the settings")
    body = json.dumps(_message(link), ensure_ascii=False).encode()
    message_id = f"{ORIGIN}-{link.repair_id}-{link.newest}"
    rules = webhook.Rules(settings.WEBHOOK_HOSTS, settings.WEBHOOK_PORTS, settings.WEBHOOK_NETWORKS)
    headers = signed_headers(
        settings.TICKET_SECRETS[link.system], message_id=message_id, at=timezone.now(), body=body
    )
    headers |= {"Content-Type": "application/json", "User-Agent": "coalmine"}
    target = webhook.checked_target(address, rules=rules)
    return post(target, body=body, headers=headers)


def _message(link: TicketLink) -> dict[str, Any]:
    """What a ticket system is told; no address or secret of a machine is in it."""
    repair = link.repair
    status = Status(repair.status)
    steps = repair.events.filter(pk__gt=link.told, pk__lte=link.newest, kind__in=repairs.TOLD)
    return {
        "origin": ORIGIN,
        "repair": repair.pk,
        "ticket": link.ticket,
        "machine": repair.machine.name,
        "kind": repair.kind,
        "component": repair.component,
        "state": TICKET_STATES[status],
        "accepts": ticket_states_from(status),
        "outcome": repair.outcome,
        "supplier_case": repair.supplier_case,
        "note": repair.note,
        "steps": [
            {"kind": step.kind, "said": step.said, "at": step.at.isoformat(), "by": step.actor}
            for step in steps.order_by("pk")[:MOST_STEPS]
        ],
        "swaps": [
            {
                "kind": swap.kind,
                "slot": swap.slot,
                "old_serial": swap.old_serial,
                "new_serial": swap.new_serial,
            }
            for swap in repair.swaps.order_by("pk")
        ],
    }


def _told(link: TicketLink, *, newest: int, answer: webhook.Answer) -> None:
    own = TicketLink.objects.filter(pk=link.pk, lease_token=link.lease_token)
    own.update(
        told=Greatest(F("told"), newest),  # it may have told us newer ones meanwhile
        told_at=timezone.now(),
        attempts=0,
        next_at=None,
        last_error="",
        lease_token="",
        leased_until=None,
    )
    given = answer.document.get("ticket") if isinstance(answer.document, Mapping) else None
    if not (isinstance(given, str) and _is_name(given)) or link.ticket:
        return
    if TicketLink.objects.filter(system=link.system, ticket=given).exists():
        said = f"answered with ticket {given}, which is another repair's"
        TicketLink.objects.filter(pk=link.pk).update(last_error=said[:300])
        return
    with transaction.atomic():
        _link_ticket(link.system, link.repair, ticket=given)


def _put_off(link: TicketLink, *, said: str, wait: float | None = None) -> None:
    wanted = FIRST_WAIT * 2 ** min(link.attempts, _DOUBLINGS)
    if wait is not None:
        wanted = max(wanted, timedelta(seconds=wait))
    own = TicketLink.objects.filter(pk=link.pk, lease_token=link.lease_token)
    own.update(
        attempts=F("attempts") + 1,
        next_at=clock.steady_time() + min(wanted, LONGEST_WAIT),
        last_error=said[:300],
        lease_token="",
        leased_until=None,
    )


# --- in -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What a ticket system says of a repair."""

    state: str
    repair: int | None = None
    ticket: str = ""
    technician: str = ""
    note: str = ""
    supplier_case: str = ""
    outcome: str = Repair.Outcome.REPAIRED
    swaps: tuple[Swap, ...] = ()
    caused_by: str = ""


@transaction.atomic
def take_ticket(
    system: str, said: Said, *, message_id: str, body: bytes, now: datetime
) -> dict[str, Any]:
    """Carry out what a ticket system says, and return what it is answered.

    A message that was carried out before is answered as it was then, and changes nothing. One
    that is refused changes nothing either, and may come again.

    Raises
    ------
    MessageConflict
        If the identifier was used for another message.
    TicketRefused, IllegalRepairStep, RepairRefused, IllegalTransition
        If it cannot be; the words say what could be.
    """
    digest = hashlib.sha256(body).hexdigest()
    earlier = TicketReceipt.objects.filter(system=system, message_id=message_id).first()
    if earlier is not None:
        if earlier.body_sha256 != digest:
            raise MessageConflict(
                f"{message_id!r} was another message before; a new one needs its own identifier"
            )
        return {**earlier.answer, "is_repeated": True}
    repair = _meant(system, said)
    link = _link_ticket(system, repair, ticket=said.ticket)
    is_all_told = link.newest == link.told
    is_echo = said.caused_by.startswith(f"{ORIGIN}-{repair.pk}-")
    is_changed = not is_echo and _carry_out(repair, said, system=system, now=now)
    repair.refresh_from_db()
    if is_changed and is_all_told:  # it knows what it has said itself
        TicketLink.objects.filter(pk=link.pk).update(told=F("newest"), told_at=timezone.now())
    answer = {
        "repair": repair.pk,
        "ticket": link.ticket,
        "state": TICKET_STATES[Status(repair.status)],
        "accepts": ticket_states_from(Status(repair.status)),
        "is_changed": is_changed,
        "is_echo": is_echo,
    }
    TicketReceipt.objects.create(
        system=system,
        message_id=message_id,
        body_sha256=digest,
        repair=repair,
        answer=answer,
        at=now,
        recorded_at=timezone.now(),
    )
    return {**answer, "is_repeated": False}


def _meant(system: str, said: Said) -> Repair:
    """The repair of which a message speaks, by our number or by its own ticket."""
    link = TicketLink.objects.filter(system=system, ticket=said.ticket).exclude(ticket="").first()
    if said.repair is not None:
        repair = Repair.objects.select_related("machine").filter(pk=said.repair).first()
        if repair is None:
            raise TicketRefused(f"there is no repair {said.repair}")
        if link is not None and link.repair_id != repair.pk:
            raise TicketRefused(
                f"ticket {said.ticket} is that of repair {link.repair_id}, not of {repair.pk}"
            )
        return repair
    if link is None:
        raise TicketRefused(f"no repair has ticket {said.ticket!r}; name the repair once")
    return Repair.objects.select_related("machine").get(pk=link.repair_id)


def _link_ticket(system: str, repair: Repair, *, ticket: str) -> TicketLink:
    newest = RepairEvent.objects.filter(repair=repair).order_by("-pk").values_list("pk", flat=True)
    link, _ = TicketLink.objects.get_or_create(
        system=system,
        repair=repair,
        defaults={"newest": newest.first() or 0, "told": newest.first() or 0},
    )
    if ticket and link.ticket and link.ticket != ticket:
        raise TicketRefused(f"repair {repair.pk} has ticket {link.ticket}, not {ticket}")
    if ticket and not link.ticket:
        TicketLink.objects.filter(pk=link.pk).update(ticket=ticket)
        Repair.objects.filter(pk=repair.pk, ticket="").update(ticket=f"{system}/{ticket}"[:100])
        link.ticket = ticket
    return link


def _carry_out(repair: Repair, said: Said, *, system: str, now: datetime) -> bool:
    """Do what is said; False where the repair stands so already."""
    actor = f"ticket:{system}"
    step = TICKET_STEPS[said.state]
    if step is None:
        return _assign(repair, said, actor=actor, now=now)
    status = Status(repair.status)
    if TICKET_STATES[status] == said.state and not _says_more(repair, said):
        return False
    if step not in steps_from(status):
        accepted = ", ".join(ticket_states_from(status)) or "nothing, it is over"
        raise TicketRefused(
            f"repair {repair.pk} is {status}, so {said.state} is not possible; "
            f"accepted now: {accepted}"
        )
    if said.technician and _is_by_hand(step, status):
        repairs.assign_repair(repair, actor=actor, technician_name=said.technician, now=now)
    if step is Step.START:
        repairs.start_repair(
            repair, actor=actor, technician_name=said.technician, now=now, note=said.note
        )
    elif step is Step.SEND_AWAY:
        repairs.send_to_supplier(
            repair, supplier_case=said.supplier_case, actor=actor, now=now, note=said.note
        )
    elif step is Step.CLOSE:
        repairs.close_repair(
            repair,
            actor=actor,
            technician_name=said.technician,
            now=now,
            swaps=said.swaps,
            outcome=said.outcome,
            note=said.note,
        )
    else:
        reason = said.note or f"cancelled in {system}"
        repairs.cancel_repair(repair, reason=reason, actor=actor, now=now)
    return True


def _is_by_hand(step: Step, status: Status) -> bool:
    """Tell whether a step is a technician's own work: each one is kept, none reviews the gate."""
    return step is Step.START or (step is Step.CLOSE and status is not Status.AT_SUPPLIER)


def _assign(repair: Repair, said: Said, *, actor: str, now: datetime) -> bool:
    if not said.technician:
        raise TicketRefused("assigned needs the technician's name")
    if repair.technician_name == said.technician:
        return False
    repairs.assign_repair(repair, actor=actor, technician_name=said.technician, now=now)
    return True


def _says_more(repair: Repair, said: Said) -> bool:
    """True of a second end with other parts: it is no repetition, so it is refused, not dropped."""
    if said.state != "done":
        return False
    known = {(swap.kind, swap.slot, swap.new_serial) for swap in repair.swaps.all()}
    told = {(swap.kind, swap.slot, swap.new_serial) for swap in said.swaps}
    return bool(told - known) or said.outcome != repair.outcome


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MOST_TICKET_CHARACTERS and text.isprintable() and text == text.strip()
