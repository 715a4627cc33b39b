"""Evidence written by hand, for tests of what shows it: one look with every kind of verdict."""

from datetime import timedelta
from typing import Any

from rollouts import services
from rollouts.models import Decision, Evaluation, Rollout, ScoreBlob, Wave
from rollouts.services.evidence.cycles import pack_scores
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user

GUARDRAILS = [
    {"metric": "faults", "signatures": ["xid.*"], "margin_ratio": 2.0, "required": True},
    {"metric": "throughput", "required": True},
    {"metric": "recovery_time", "required": False},
    {"metric": "install", "required": False},
]


def draft(*, name: str = "gpu firmware", machines: int = 20, **fields: Any) -> Rollout:
    """A draft over new machines, by an author of its own unless one is given."""
    author = fields.pop("author", None) or make_user()
    make_machines(machines, versions={"gpu": "1.0"})
    return services.create_draft(
        name=name,
        bundle=make_bundle(images=[make_image("gpu", "2.0", vendor=name)]),
        selector="platform=dgx-h100",
        document={
            "waves": [{"count": 4, "window_hours": 48}],
            "guardrails": GUARDRAILS,
            "strata": ["platform"],
            "resamples": 999,
            "caps": {"max_unavailable_share": None, "paced": False},
        },
        author=author,
        now=NOW,
        seed=7,
        **fields,
    )


def submitted(**fields: Any) -> Rollout:
    rollout = draft(**fields)
    services.submit(rollout, actor=rollout.author, now=NOW)
    return rollout


def running(**fields: Any) -> Rollout:
    rollout = submitted(**fields)
    services.approve(rollout, actor=make_user(), now=NOW)
    services.start(rollout, actor=rollout.author, now=NOW)
    return rollout


def seen(name: str, metric: str, **changes: Any) -> dict[str, Any]:
    """One guardrail as an evaluation stores it."""
    return {
        "name": name,
        "metric": metric,
        "verdict": "inconclusive",
        "unit": "ratio",
        "estimate": 1.0,
        "repeated": {"low": 0.9, "high": 1.1, "level": 0.95},
        "fixed_look": {"low": 0.95, "high": 1.05, "level": 0.95},
        "canary": {"machines": 4, "events": 3, "exposure_hours": 96.0},
        "control": {"machines": 16, "events": 9, "exposure_hours": 384.0},
        "reason": "not yet proven",
        "required": True,
        "is_decidable": None,
        "crossed": False,
        "shown": False,
        "details": {},
        **changes,
    }


def look(
    wave: Wave,
    number: int = 1,
    *,
    kind: str = "hold",
    code: str = "evidence_open",
    reason: str = "not yet proven: faults",
    guardrails: list[dict[str, Any]] | None = None,
    purity: float | None = None,
) -> Decision:
    """One evaluation of a wave with the decision that followed."""
    as_of = NOW + timedelta(hours=6 * number)
    Wave.objects.filter(pk=wave.pk, status="pending").update(status="observing", clock_start=NOW)
    blob, _ = ScoreBlob.objects.get_or_create(
        digest=f"{wave.pk:032x}{number:032x}",
        defaults={"content": pack_scores({"faults": (1, -2, 3)})},
    )
    evaluation = Evaluation.objects.create(
        rollout=wave.rollout,
        wave=wave,
        look=number,
        as_of=as_of,
        elapsed=0.1 * number,
        engine_version="1",
        guardrails=guardrails if guardrails is not None else every_verdict(),
        inputs={"seed": 1, "resamples": 999, "purity": purity},
        scores=blob,
        recorded_at=as_of,
    )
    return Decision.objects.create(
        rollout=wave.rollout,
        wave=wave,
        evaluation=evaluation,
        kind=kind,
        reason_code=code,
        reason=reason,
        as_of=as_of,
        recorded_at=as_of,
    )


def every_verdict() -> list[dict[str, Any]]:
    return [
        seen(
            "faults:xid.*",
            "faults",
            verdict="harmful",
            estimate=3.1,
            crossed=True,
            repeated={"low": 1.6, "high": 7.2, "level": 0.95},
            reason="more than in control",
        ),
        seen(
            "throughput",
            "throughput",
            verdict="not_worse",
            estimate=0.999,
            shown=True,
            repeated={"low": 0.994, "high": 1.004, "level": 0.95},
            reason="within the margin",
        ),
        seen(
            "recovery_time",
            "recovery_time",
            required=False,
            estimate=1.1,
            repeated={"low": 0.6, "high": None, "level": 0.95},
        ),
        seen(
            "install",
            "install",
            verdict="no_data",
            unit="difference",
            estimate=None,
            repeated={"low": None, "high": None, "level": 0.95},
            required=False,
            canary={"machines": 0, "events": None, "exposure_hours": 0.0},
            reason="no attempt has ended",
        ),
    ]
