"""One supplier case from the rows: everything that may leave, and what has to be let through."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q

from fleet import stories
from fleet.faults import happened_at
from fleet.lifecycle import State
from fleet.models import (
    Change,
    FaultSignature,
    FirmwareRecord,
    GateEvent,
    Incident,
    Job,
    JobImpact,
    JobKind,
    Machine,
    PartSwap,
    Recovery,
    Repair,
    RepairKind,
    StateChange,
    Team,
)
from fleet.shipped import gate_plans
from rollouts.errors import PackageRefused
from rollouts.supplier.allowed import Filter, Names, Row, secrets, utc

#: Incidents that one package tells of.
MOST_INCIDENTS = 100
#: The time line begins so long before an incident, and goes on so long after all is over.
BEFORE, AFTER = timedelta(days=1), timedelta(days=30)
#: Rows of one source and one incident.
MOST_ROWS = 500

REPAIR_STEPS = frozenset(
    [
        "ordered",
        "assigned",
        "started",
        "returned",
        "sent_away",
        "closed",
        "cancelled",
        "ineffective",
    ]
)
GATE_STEPS = frozenset(
    ["opened", "observe", "to_review", "fail", "accept", "reject", "void", "note", "partner"]
)
#: Actors that are the product itself.
PRODUCT = frozenset({"rule", "gate rule", "watchdog", "incidents", "break glass", "command line"})
VERSIONED = (Change.Kind.DRIVER, Change.Kind.FIRMWARE)
_WORD = re.compile(r"[\w@.:-]+")


@dataclass(frozen=True)
class Text:
    """A free text, as it would leave: without what names the house. It stays unless let through."""

    key: str
    field: str
    at: datetime
    machine: str
    incident: str
    text: str
    is_let_through: bool = False


@dataclass(frozen=True)
class Package:
    """What a supplier gets: allow-listed fields only, times in UTC, pseudonyms for machines, jobs.

    `left_out` counts what did not leave, by kind.
    """

    case: str
    made_at: datetime
    machines: int
    incidents: tuple[Mapping[str, Any], ...]
    rows: tuple[Row, ...]
    left_out: Mapping[str, int]
    texts: tuple[Text, ...]

    @property
    def let_through(self) -> list[str]:
        """Keys of the texts that somebody let through."""
        return [text.key for text in self.texts if text.is_let_through]


def gather(case: str, *, texts: Collection[str] = (), now: datetime) -> Package:
    """Read everything about a supplier's case that may leave.

    Parameters
    ----------
    case : str
        As incidents and repairs name it.
    texts : collection of str
        Keys of the free texts that the owner of the case lets through.
    now : datetime

    Raises
    ------
    PackageRefused
        If nothing names this case, or a key is of no text of it.
    """
    incidents = _incidents(case)
    gathered = _Gathering(incidents, now=now)
    offered = gathered.texts()
    unknown = sorted(set(texts) - {text.key for text in offered})
    if unknown:
        known = ", ".join(text.key for text in offered[:10]) or "none"
        raise PackageRefused(
            f"no text of case {case!r} is called {unknown[0]!r}; there are {known}"
        )
    chosen = tuple(replace(text, is_let_through=text.key in texts) for text in offered)
    rows = sorted(
        [*gathered.rows(), *(_text_row(text) for text in chosen if text.is_let_through)],
        key=lambda row: (row.at, row.machine, row.incident, row.source),
    )
    summaries = tuple(gathered.summary(story) for story in gathered.stories)
    left_out = gathered.left_out()
    left_out["free texts"] = sum(not text.is_let_through for text in chosen)
    return Package(
        case=case,
        made_at=now,
        machines=gathered.names.count("M"),
        incidents=summaries,
        rows=tuple(rows),
        left_out={name: count for name, count in sorted(left_out.items()) if count},
        texts=chosen,
    )


def _text_row(text: Text) -> Row:
    values = {"field": text.field, "text": text.text}
    return Row(text.at, text.machine, text.incident, "text", values)


def _incidents(case: str) -> list[Incident]:
    if not case.strip():
        raise PackageRefused("a package is of one case; name it as its incidents or repairs do")
    named = Q(supplier_case=case) | Q(repairs__supplier_case=case)
    found = Incident.objects.filter(named, merged_into=None).distinct()
    related = found.select_related("machine", "signature", "change", "bundle")
    incidents = list(related.order_by("opened_at", "pk")[: MOST_INCIDENTS + 1])
    if not incidents:
        if Repair.objects.filter(supplier_case=case, incident=None).exists():
            raise PackageRefused(
                f"the repairs of case {case!r} belong to no incident; name the case on the page of "
                "the incident that they are about"
            )
        raise PackageRefused(f"no incident and no repair names case {case!r}")
    if len(incidents) > MOST_INCIDENTS:
        raise PackageRefused(f"case {case!r} has more than {MOST_INCIDENTS} incidents")
    return incidents


class _Gathering:
    """The stories of a case, as rows of allowed fields."""

    def __init__(self, incidents: list[Incident], *, now: datetime) -> None:
        self.now = now
        self.stories = [stories.story(incident, as_of=now) for incident in incidents]
        self.names = Names()
        self.numbers = {}
        for number, incident in enumerate(incidents, start=1):
            self.numbers[incident.pk] = f"I{number}"
            self.names.number("M", incident.machine.name)
        self.names.secret = secrets(_of_the_house(self.stories, self._raw()))
        self.filter = Filter(
            self.names,
            signatures=frozenset(_catalogue()),
            checks={check["name"] for plan in gate_plans.shipped() for check in plan["checks"]},
        )
        self.units = {
            check.get("unit", "") for plan in gate_plans.shipped() for check in plan["checks"]
        }

    def left_out(self) -> Counter[str]:
        counts = Counter(self.filter.withheld)
        counts["faults beyond those listed"] = sum(story.more_faults for story in self.stories)
        files = [
            record.evidence.count()
            for told in self.stories
            for records in (told.repairs, told.results)
            for record in records
        ]
        counts["evidence files"] = sum(files)
        return counts

    # --- rows ------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Every row of every incident; what two incidents of a machine share comes once."""
        seen: set[tuple[str, int]] = set()
        for story in self.stories:
            for source, pk, at, values in self._told(story):
                if (source, pk) in seen:
                    continue
                seen.add((source, pk))
                yield self._row(story, source, at, values)

    def _row(self, story: stories.Story, source: str, at: datetime, values: dict[str, Any]) -> Row:
        machine = self.names.number("M", story.incident.machine.name)
        return Row(at, machine, self.numbers[story.incident.pk], source, values)

    def _told(self, story: stories.Story) -> Iterator[tuple[str, int, datetime, dict[str, Any]]]:
        yield from self._telemetry(story)
        yield from self._work(story)
        yield from self._changes(story)
        yield from self._repairs(story)
        yield from self._gates(story)
        yield from self._later(story)

    def _telemetry(self, story: stories.Story) -> Iterator[Any]:
        clean = self.filter
        for fault in story.faults:
            values = {
                "signature": clean.signature(fault.signature.name),
                "component": clean.component(fault.component),
                "severity": clean.word(fault.severity, known=FaultSignature.Severity.values),
            }
            yield "fault", fault.pk, happened_at(fault), values

    def _work(self, story: stories.Story) -> Iterator[Any]:
        for one in story.recoveries:
            values = {
                "job": self.names.number("J", one.job),
                "outcome": self.filter.word(one.path, known=Recovery.Path.values),
                "recovery_seconds": one.recovery_seconds,
                "repeated_seconds": one.repeated_seconds,
            }
            yield "interruption", one.pk, one.time, values
        for impact in story.impacts:
            resumed = impact.resumed_at
            lasted = (resumed - impact.fault_at).total_seconds() if resumed else None
            values = {
                "job": self.names.number("J", impact.job),
                "job_kind": self.filter.word(impact.job_kind, known=JobKind.values),
                "outcome": self.filter.word(impact.outcome, known=JobImpact.Outcome.values),
                "recovery_seconds": lasted,
                "repeated_seconds": impact.repeated_seconds,
                "accelerators": impact.accelerators,
                "accelerator_hours_lost": impact.accelerator_hours_lost,
            }
            yield "impact", impact.pk, impact.fault_at, values

    def _changes(self, story: stories.Story) -> Iterator[Any]:
        clean = self.filter
        for record in self._records(story):
            values = {
                "component": clean.component(f"{record.kind} {record.slot}".strip()),
                "stage": clean.word(record.stage, known=FirmwareRecord.Stage.values),
                "version": clean.version(record.version),
            }
            yield "firmware", record.pk, record.since, values
        for change in self._reported(story):
            values = {"change_kind": clean.word(change.kind, known=Change.Kind.values)}
            if change.kind in VERSIONED:
                values |= {
                    "component": clean.component(change.what),
                    "old": clean.version(change.old),
                    "new": clean.version(change.new),
                }
            yield "change", change.pk, change.at, values
        for move in self._moves(story):
            values = {
                "old": clean.word(move.old_state, known=list(State)),
                "new": clean.word(move.new_state, known=list(State)),
            }
            yield "state", move.pk, move.at, values

    def _repairs(self, story: stories.Story) -> Iterator[Any]:
        clean = self.filter
        for repair in story.repairs:
            kind = clean.word(repair.kind, known=RepairKind.values)
            for step in repair.events.order_by("at", "pk")[:MOST_ROWS]:
                values = {"repair_kind": kind, "step": clean.word(step.kind, known=REPAIR_STEPS)}
                if step.kind == "closed":
                    values["outcome"] = clean.word(repair.outcome, known=Repair.Outcome.values)
                yield "repair", step.pk, step.at, values
            for swap in repair.swaps.all():
                yield "part", swap.pk, swap.at, self._part(swap)

    def _part(self, swap: PartSwap) -> dict[str, Any]:
        clean = self.filter
        return {
            "component": clean.component(f"{swap.kind} {swap.slot}".strip()),
            "old": clean.serial(swap.old_serial),
            "new": clean.serial(swap.new_serial),
            "old_model": clean.model(swap.old_model),
            "new_model": clean.model(swap.new_model),
        }

    def _gates(self, story: stories.Story) -> Iterator[Any]:
        clean = self.filter
        for result in story.results:
            values = {
                "check": clean.check(result.gate_check.name),
                "outcome": "passed" if result.is_passed else "failed",
                "value": result.value,
                "unit": clean.unit(result.unit, known=self.units),
                **_limits(result.gate_check.rule),
            }
            yield "check", result.pk, result.at, values
        for step in self._gate_events(story):
            yield "gate", step.pk, step.at, {"step": clean.word(step.kind, known=GATE_STEPS)}

    def _later(self, story: stories.Story) -> Iterator[Any]:
        since = story.later.since
        if since is None:
            return
        own = set(self.numbers)
        after = Incident.objects.filter(
            machine=story.incident.machine_id,
            merged_into=None,
            opened_at__gt=since,
            opened_at__lte=self.now,
        ).exclude(pk__in=own)
        for one in after.select_related("signature").order_by("opened_at", "pk")[:MOST_ROWS]:
            values = {
                "signature": self.filter.signature(one.signature.name),
                "component": self.filter.component(one.component),
                "severity": self.filter.word(one.severity, known=FaultSignature.Severity.values),
                "count": one.fault_count,
            }
            yield "later", one.pk, one.opened_at, values

    # --- what rows are made of -------------------------------------------------------------------

    def _span(self, story: stories.Story) -> tuple[datetime, datetime]:
        """From when to when what the machine did belongs to the incident."""
        incident = story.incident
        ends = [repair.closed_at or self.now for repair in story.repairs]
        last = max([incident.closed_at or self.now, incident.last_fault_at, *ends])
        return incident.opened_at - BEFORE, min(last + AFTER, self.now)

    def _records(self, story: stories.Story) -> Iterable[FirmwareRecord]:
        since, until = self._span(story)
        records = story.incident.machine.firmware.filter(since__gte=since, since__lte=until)
        return records.order_by("since", "pk")[:MOST_ROWS]

    def _reported(self, story: stories.Story) -> Iterable[Change]:
        since, until = self._span(story)
        touched = Change.objects.filter(touched__machine=story.incident.machine_id)
        return touched.filter(at__gte=since, at__lte=until).order_by("at", "pk")[:MOST_ROWS]

    def _moves(self, story: stories.Story) -> Iterable[StateChange]:
        since, until = self._span(story)
        moves = story.incident.machine.state_changes.filter(at__gte=since, at__lte=until)
        return moves.order_by("at", "pk")[:MOST_ROWS]

    def _gate_events(self, story: stories.Story) -> Iterable[GateEvent]:
        gates = [gate.pk for gate in story.gates]
        return GateEvent.objects.filter(gate__in=gates).order_by("at", "pk")[:MOST_ROWS]

    # --- the incidents at a glance ---------------------------------------------------------------

    def summary(self, story: stories.Story) -> dict[str, Any]:
        """What an incident was, what the machine ran when it began, and what came after."""
        incident, later, clean = story.incident, story.later, self.filter
        return {
            "incident": self.numbers[incident.pk],
            "machine": self.names.number("M", incident.machine.name),
            "signature": clean.signature(incident.signature.name),
            "component": clean.component(incident.component),
            "severity": clean.word(incident.severity, known=FaultSignature.Severity.values),
            "opened_at": utc(incident.opened_at),
            "last_fault_at": utc(incident.last_fault_at),
            "closed_at": utc(incident.closed_at) if incident.closed_at else None,
            "faults": incident.fault_count,
            "cause": clean.word(incident.cause, known=Incident.Cause.values),
            "firmware_when_it_began": [
                {
                    "component": clean.component(part.name),
                    "active": clean.version(part.active),
                    "staged": clean.version(part.staged),
                    "committed": clean.version(part.committed),
                }
                for part in story.firmware.parts
            ],
            "firmware_changed_hours_before": story.firmware.changed_hours,
            "later": {
                "in_service_since": utc(later.since) if later.since else None,
                "until": utc(later.until),
                "exposure_hours": later.exposure_hours,
                "same_again": later.same,
                "other_incidents": later.others,
            },
        }

    # --- free texts ------------------------------------------------------------------------------

    def texts(self) -> list[Text]:
        """Every free text of the case, as it would leave, in order of time."""
        found: dict[str, Text] = {}
        for story, key, name, at, text in self._raw():
            clean = self.filter.text(text.strip())
            if clean and key not in found:
                machine = self.names.number("M", story.incident.machine.name)
                number = self.numbers[story.incident.pk]
                found[key] = Text(key, name, at, machine, number, clean)
        return sorted(found.values(), key=lambda text: (text.at, text.key))

    def _raw(self) -> Iterator[tuple[stories.Story, str, str, datetime, str]]:
        for story in self.stories:
            for key, name, at, text in self._texts_of(story):
                if text:
                    yield story, key, name, at, text

    def _texts_of(self, story: stories.Story) -> Iterator[tuple[str, str, datetime, str]]:
        incident = story.incident
        yield f"incident-{incident.pk}", "diagnosis", incident.opened_at, incident.diagnosis
        for event in story.said:
            yield f"incident-event-{event.pk}", f"incident {event.kind}", event.at, event.said
        for change in self._reported(story):
            told = f"{change.what}: {change.old} → {change.new} {change.note}".strip()
            yield f"change-{change.pk}", "change", change.at, told
        for move in self._moves(story):
            yield f"state-{move.pk}", "change of state", move.at, move.reason
        for repair in story.repairs:
            yield f"repair-{repair.pk}", "repair", repair.ordered_at, repair.note
            for step in repair.events.order_by("at", "pk")[:MOST_ROWS]:
                yield f"repair-event-{step.pk}", "step of the repair", step.at, step.said
        for gate in story.gates:
            yield f"gate-{gate.pk}", "communication pattern", gate.opened_at, gate.pattern
        for step_of_gate in self._gate_events(story):
            key = f"gate-event-{step_of_gate.pk}"
            yield key, "step of the gate", step_of_gate.at, step_of_gate.said
        for result in story.results:
            yield f"check-{result.pk}", "note of a check", result.at, result.note


def _limits(rule: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers that a result had to keep, where the rule names them."""
    kind, value = rule.get("kind"), rule.get("value")
    number = float(value) if isinstance(value, int | float) else None
    low = number if kind in (">=", ">", "equals") else rule.get("low")
    high = number if kind in ("<=", "<", "equals") else rule.get("high")
    return {
        name: float(limit) if isinstance(limit, int | float) else None
        for name, limit in (("low", low), ("high", high))
    }


# --- what names the house ------------------------------------------------------------------------


def _catalogue() -> Iterable[str]:
    """Return the names of signatures that somebody has looked at: not those that merely came."""
    known = FaultSignature.objects.filter(first_seen_at=None)
    return known.exclude(kind=FaultSignature.Kind.UNKNOWN).values_list("name", flat=True)


def _of_the_house(
    told: Iterable[stories.Story], raw: Iterable[tuple[Any, str, str, datetime, str]]
) -> Iterator[str]:
    """Yield every name that must not leave: of the machines, and others that the texts hold."""
    words: set[str] = set()
    for *_, text in raw:
        words |= set(_WORD.findall(text))
    for story in told:
        yield from _of_machine(story.incident.machine)
        yield from (one.job for one in story.recoveries)
        yield from (impact.job for impact in story.impacts)
        yield from story.jobs
        yield from _hands(story)
    yield from _of_people()
    yield from Team.objects.values_list("name", flat=True)
    for column in ("name", "scheduler_node", "bmc_address"):
        named = Machine.objects.filter(**{f"{column}__in": words})
        yield from named.values_list(column, flat=True)
    yield from Job.objects.filter(name__in=words).values_list("name", flat=True)


def _of_machine(machine: Machine) -> Iterator[str]:
    yield from (machine.name, machine.scheduler_node, machine.bmc_address, machine.credential)
    yield from (getattr(machine, place) for place in Machine.PLACES)
    yield from (machine.job, machine.workload, machine.serial)
    yield from (str(value) for value in machine.labels.values())
    yield machine.platform.name


def _hands(told: stories.Story) -> Iterator[str]:
    """Yield whom the records name: technicians, and who said or did something."""
    yield from (repair.technician_name for repair in told.repairs)
    actors = {event.actor for event in told.said} | {result.actor for result in told.results}
    for repair in told.repairs:
        actors |= {swap.actor for swap in repair.swaps.all()}
        actors |= {step.actor for step in repair.events.all()}
        actors |= {step.said for step in repair.events.all() if step.kind == "assigned"}
    yield from actors - PRODUCT


def _of_people() -> Iterator[str]:
    for names in User.objects.values_list("username", "first_name", "last_name", "email"):
        yield from names
