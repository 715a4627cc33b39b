"""What the engine saw and said, written down: evaluation, decision, and what follows of it."""

import dataclasses
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from rollouts.analysis.verdicts import DecisionKind, LookEvaluation, Reason
from rollouts.errors import StaleRollout
from rollouts.models import Decision, Evaluation, Rollout, ScoreBlob, Wave


def pack_scores(scores: Mapping[str, Any]) -> bytes:
    """Serialise named integer vectors to one compressed string, the same on every machine.

    Examples
    --------
    >>> unpack_scores(pack_scores({"faults": (1, -2, 3)}))
    {'faults': [1, -2, 3]}
    """
    head = json.dumps({name: len(values) for name, values in sorted(scores.items())})
    body = b"".join(np.asarray(scores[name], dtype="<i8").tobytes() for name in sorted(scores))
    return zlib.compress(head.encode() + b"\n" + body, level=6)


def unpack_scores(content: bytes) -> dict[str, list[int]]:
    """Return what `pack_scores` packed."""
    head, _, body = zlib.decompress(content).partition(b"\n")
    values = np.frombuffer(body, dtype="<i8")
    scores, start = {}, 0
    for name, length in json.loads(head).items():
        scores[name] = values[start : start + length].tolist()
        start += length
    return scores


@transaction.atomic
def record_cycle(
    wave: Wave,
    *,
    outcome: LookEvaluation,
    as_of: datetime,
    state: Mapping[str, Any],
    inputs: Mapping[str, Any],
    engine_version: str,
    next_look_at: datetime | None,
) -> Decision:
    """Store one look once: scores, evaluation, decision, and the state for the next look.

    Raises
    ------
    StaleRollout
        If another worker has recorded this look already; nothing is stored twice.
    """
    changed = Wave.objects.filter(pk=wave.pk, looks=outcome.look - 1, status=wave.status).update(
        looks=outcome.look, judge_state=plain(state), next_look_at=next_look_at
    )
    if not changed:
        raise StaleRollout(f"look {outcome.look} of {wave} was recorded by somebody else")
    evaluation = _record(
        Evaluation(
            rollout=wave.rollout,
            wave=wave,
            look=outcome.look,
            as_of=as_of,
            elapsed=outcome.elapsed,
            engine_version=engine_version,
            guardrails=[plain(dataclasses.asdict(g)) for g in outcome.guardrails],
            flags=list(outcome.flags),
            inputs=plain({**inputs, "told": outcome.told}),
            scores=_blob(outcome.scores),
        )
    )
    return decide(
        wave.rollout,
        outcome.recommendation.kind,
        outcome.recommendation.code,
        outcome.recommendation.reason,
        as_of=as_of,
        wave=wave,
        evaluation=evaluation,
    )


def _record(evaluation: Evaluation) -> Evaluation:
    evaluation.digest = digest_of(evaluation)
    evaluation.recorded_at = timezone.now()
    evaluation.save()
    return evaluation


def digest_of(evaluation: Evaluation) -> str:
    """Name the content of an evaluation, the same whatever database it comes from."""
    content = {
        "wave": evaluation.wave_id,
        "kind": str(evaluation.kind),
        "look": evaluation.look,
        "as_of": evaluation.as_of.astimezone(UTC).isoformat(),
        "elapsed": evaluation.elapsed,
        "engine_version": evaluation.engine_version,
        "guardrails": evaluation.guardrails,
        "flags": evaluation.flags,
        "inputs": evaluation.inputs,
        "scores": evaluation.scores.digest,
    }
    text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


#: Below it every whole number is a float too.
_WHOLE = 2**53


def _canonical(value: Any) -> Any:
    """Write numbers in one way: a database may give 1.0 back as 1."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        return int(value)
    return value


def content_digest(content: bytes) -> str:
    """Name the packed scores of a look."""
    return hashlib.sha256(content).hexdigest()


def _blob(scores: Mapping[str, Any]) -> ScoreBlob:
    content = pack_scores(scores)
    digest = content_digest(content)
    return ScoreBlob.objects.get_or_create(digest=digest, defaults={"content": content})[0]


@transaction.atomic
def record_check(
    wave: Wave,
    kind: Evaluation.Kind,
    *,
    as_of: datetime,
    guardrails: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Any],
    inputs: Mapping[str, Any],
    engine_version: str,
) -> Evaluation:
    """Store what the engine saw beside the looks at a wave, so that it can be replayed as they."""
    made = Evaluation.objects.filter(wave=wave, kind=kind).aggregate(last=Max("look"))["last"] or 0
    return _record(
        Evaluation(
            rollout=wave.rollout,
            wave=wave,
            kind=kind,
            look=made + 1,
            as_of=as_of,
            elapsed=0.0,
            engine_version=engine_version,
            guardrails=plain(list(guardrails)),
            inputs=plain(inputs),
            scores=_blob(scores),
        )
    )


def decide(
    rollout: Rollout,
    kind: DecisionKind,
    code: Reason,
    reason: str,
    *,
    as_of: datetime,
    wave: Wave | None = None,
    evaluation: Evaluation | None = None,
) -> Decision:
    """Record one decision of the engine."""
    return Decision.objects.create(
        rollout=rollout,
        wave=wave,
        evaluation=evaluation,
        kind=kind,
        reason_code=code,
        reason=reason,
        as_of=as_of,
        recorded_at=timezone.now(),
    )


def plain(value: Any) -> Any:
    """Turn a value into plain JSON: what is not a finite number becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
