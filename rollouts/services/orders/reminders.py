"""Nothing waits for a person unheard: a record each time that a state outlasts its patience."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.utils import timezone

from rollouts import selectors
from rollouts.explain import explain, in_words
from rollouts.lifecycle import PATIENCE, WAVE_PATIENCE, Status, WaveStatus
from rollouts.models import Reminder, Rollout, Wave


def remind(*, now: datetime) -> int:
    """Record a reminder for whatever has waited too long; return how many are new.

    Safe to repeat: each passing of a deadline is recorded once. Where several have passed unseen
    (nothing ran meanwhile) only the last is.
    """
    return sum(_record(one, now=now) for one in _overdue(now))


def _overdue(now: datetime) -> Iterator[Reminder]:
    for rollout in Rollout.objects.filter(status__in=list(PATIENCE)).select_related("bundle"):
        status = Status(rollout.status)
        since = selectors.standing_since(rollout)
        yield from _reminder(rollout, "rollout", status, since, PATIENCE[status], now=now)
    running = Wave.objects.filter(rollout__status=Status.RUNNING)
    for wave in running.filter(status__in=list(WAVE_PATIENCE)).select_related("rollout__bundle"):
        began = _waits_since(wave)
        if began is not None:
            patience = WAVE_PATIENCE[WaveStatus(wave.status)]
            name = f"wave {wave.number}"
            yield from _reminder(wave.rollout, name, wave.status, began, patience, now=now)


def _waits_since(wave: Wave) -> datetime | None:
    """Return since when the wave waits for a person; None where it goes on by itself."""
    if wave.status == WaveStatus.PENDING:
        refused = selectors.refused_start(wave)
        return refused.as_of if refused else None
    if wave.status == WaveStatus.OBSERVING:
        advice = selectors.advised_widen(wave)
        return advice.as_of if advice else None
    return selectors.wave_since(wave)


def _reminder(
    rollout: Rollout,
    subject: str,
    status: str,
    since: datetime,
    patience: timedelta,
    *,
    now: datetime,
) -> Iterator[Reminder]:
    number = (now - since) // patience
    if number >= 1:
        yield Reminder(
            rollout=rollout,
            subject=subject,
            status=status,
            since=since,
            number=number,
            at=now,
            recorded_at=timezone.now(),
        )


def _record(one: Reminder, *, now: datetime) -> int:
    known = Reminder.objects.filter(
        rollout=one.rollout, subject=one.subject, status=one.status, since=one.since
    )
    if known.filter(number__gte=one.number).exists():
        return 0
    waits = f"{one.subject} has been {one.status} for {_length(now - one.since)}"
    text = f"{waits}\n{in_words(explain(one.rollout))}"
    _, is_new = Reminder.objects.get_or_create(
        rollout=one.rollout,
        subject=one.subject,
        status=one.status,
        since=one.since,
        number=one.number,
        defaults={"text": text, "at": one.at, "recorded_at": one.recorded_at},
    )
    return int(is_new)


def _length(passed: timedelta) -> str:
    hours = passed / timedelta(hours=1)
    return f"{hours:.0f} h" if hours < 48 else f"{passed.days} days"
