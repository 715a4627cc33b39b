"""Waves: in what order, why they began, when they end, and how large their arms are."""

from datetime import datetime, timedelta

from django.db.models import Count, Max, QuerySet

from rollouts.lifecycle import WAITING, Trigger, WaveStatus, WaveTrigger
from rollouts.models import Block, Decision, Membership, Order, Rollout, Transition, Wave

#: Moves after which the next wave begins; the first wave follows the rollout's own start.
_LET_THE_NEXT_BEGIN = (
    Trigger.START,
    WaveTrigger.WIDEN,
    WaveTrigger.ADVANCE,
    WaveTrigger.SKIP,
)
#: A wave in one of these is over.
WAVE_OVER = (WaveStatus.WIDENED, WaveStatus.SKIPPED)


def current_wave(rollout: Rollout) -> Wave | None:
    """Return the first wave that is not over, or None when all are."""
    return rollout.waves.exclude(status__in=WAVE_OVER).order_by("number").first()


def cause_of_next_wave(rollout: Rollout) -> Decision | Order | None:
    """Return why the next wave may begin: what ended the one before it, or the start."""
    moves = rollout.transitions.filter(trigger__in=_LET_THE_NEXT_BEGIN)
    return _cause(moves.exclude(decision=None, order=None))


def cause_of(wave: Wave) -> Decision | Order | None:
    """Return why a wave began."""
    return _cause(wave.transitions.filter(trigger=WaveTrigger.START))


def _cause(moves: QuerySet[Transition]) -> Decision | Order | None:
    last = moves.select_related("decision", "order").order_by("-pk").first()
    return (last.decision or last.order) if last else None


def waves_of(rollout: Rollout) -> QuerySet[Wave]:
    """Return the waves in order."""
    return rollout.waves.order_by("number")


def reopened_at(wave: Wave) -> datetime | None:
    """Return when the wave's window was opened anew after an override, or None."""
    last = wave.transitions.filter(trigger=WaveTrigger.REOPEN).order_by("-pk").first()
    return last.at if last else None


def arm_sizes(rollout: Rollout) -> dict[int, dict[str, int]]:
    """Return, per wave number, how many machines each arm has."""
    rows = (
        Membership.objects.filter(wave__rollout=rollout)
        .values("wave__number", "arm")
        .annotate(n=Count("pk"))
        .order_by("wave__number")
    )
    sizes: dict[int, dict[str, int]] = {}
    for row in rows:
        sizes.setdefault(row["wave__number"], {})[row["arm"]] = row["n"]
    return sizes


def settles_at(wave: Wave) -> datetime | None:
    """Return when the last block's burn-in ends; None while blocks are still to install."""
    return wave.blocks.aggregate(last=Max("clock_start"))["last"]


def surveillance_end(rollout: Rollout) -> datetime | None:
    """Return when a rollout may complete; None before its release. A roll back is not watched."""
    if rollout.released_at is None:
        return None
    days = 0 if rollout.kind == Rollout.Kind.ROLL_BACK else rollout.plan["surveillance_days"]
    return rollout.released_at + timedelta(days=days)


def blocks_that_wait(rollout: Rollout) -> QuerySet[Block]:
    """Return the blocks of which some attempt waits to be started, in order."""
    waiting = rollout.attempts.filter(status__in=WAITING, epoch=rollout.epoch)
    blocks = Block.objects.filter(pk__in=waiting.values("block"))
    return blocks.select_related("wave__rollout").order_by("wave__number", "number")
