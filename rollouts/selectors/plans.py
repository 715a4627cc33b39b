"""What a plan promises: its preview, its forecast, who can take the bundle and go back."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from fleet.models import FirmwareBundle, FirmwareImage
from rollouts import planning
from rollouts.lifecycle import Status
from rollouts.models import Assignment, Preview, Rollout, Wave
from rollouts.selectors.waves import waves_of


def preview_of(rollout: Rollout) -> Preview | None:
    """Return the preview that counts: the newest of a draft, the promised one of a plan."""
    seen = rollout.previews.defer("members")
    if rollout.plan_digest and rollout.status != Status.DRAFT:
        return seen.filter(digest=rollout.plan_digest).first()
    return seen.first()


def digest_to_order(rollout: Rollout) -> str:
    """Return the digest that an order binds itself to: of the last preview, or of the plan."""
    if rollout.status != Status.DRAFT:
        return rollout.plan_digest
    seen = preview_of(rollout)
    return seen.digest if seen else ""


def shown_forecast(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a preview's forecast as `forecast_of` gives that of a submitted rollout."""
    return [
        {
            **word,
            "guardrails": [{"name": name, **row} for name, row in word["guardrails"].items()],
        }
        for word in summary.get("forecast", ())
        if word.get("guardrails")
    ]


def forecast_of(rollout: Rollout) -> list[dict[str, Any]]:
    """Return the planner's word on each judged wave: what an approver reads before the start.

    One row per guardrail: what the wave halts on (at 50, 80 and 90 % power), what it can rule
    out, and when, or what it lacks. Empty before submission.
    """
    judged = waves_of(rollout).filter(kind=Wave.Kind.CANARY)
    return [
        {
            "number": wave.number,
            **{
                key: wave.forecast.get(key)
                for key in (
                    "canaries",
                    "controls",
                    "days_before",
                    "read_from",
                    "summary",
                    "a_a_check",
                )
            },
            "guardrails": [
                {"name": name, **row} for name, row in wave.forecast["guardrails"].items()
            ],
        }
        for wave in judged
        if wave.forecast.get("guardrails")  # rollouts of earlier versions have figures only
    ]


def readiness_of(
    bundle: FirmwareBundle, versions: Mapping[int, Mapping[str, str]], *, plan: Mapping[str, Any]
) -> planning.Readiness[int]:
    """Return which machines the bundle can go onto, and which of them cannot go back from it.

    `versions` maps machine ids to active versions, as `fleet.selectors.versions_now` gives them.
    """
    wanted = [place.image for place in bundle.places.select_related("image").order_by("position")]
    kept = FirmwareImage.objects.filter(kind__in={image.kind for image in wanted})
    return planning.readiness(
        versions,
        bundle=[_image(image) for image in wanted],
        images=[_image(image) for image in kept],
        allow_unordered=plan.get("allow_unordered", False),
    )


def cannot_go_back(rollout: Rollout, places: Iterable[Assignment]) -> dict[int, str]:
    """Return which of these machines could not go back to what ran before, and why.

    By what was read back before the update and by the images that are kept now; at planning it
    could only be foretold.
    """
    versions = {place.machine_id: place.previous_versions for place in places}
    ready = readiness_of(rollout.bundle, versions, plan=rollout.plan)
    return {**ready.blocked, **ready.irreversible}


def _image(image: FirmwareImage) -> planning.Image:
    return planning.Image(
        kind=image.kind,
        version=image.version,
        scheme=image.scheme,
        vendor=image.vendor,
        activation=image.activation,
        is_downgrade_allowed=image.is_downgrade_allowed,
        floor_version=image.floor_version,
    )


def approval_holds(rollout: Rollout) -> timedelta:
    """Return how long an approval of the plan holds."""
    return timedelta(days=rollout.plan.get("approval_days", 7.0))


def approval_ends(rollout: Rollout) -> datetime | None:
    """Return until when the rollout's approval holds; None where nobody has approved it."""
    return rollout.approved_at + approval_holds(rollout) if rollout.approved_at else None


def kinds_of(rollout: Rollout) -> set[str]:
    """Return the components that the rollout's bundle carries firmware for."""
    return set(rollout.bundle.images.values_list("kind", flat=True))


def successors(rollout: Rollout) -> QuerySet[Rollout]:
    """Return the newer rollouts of the same component that could take this one's place."""
    newer = Rollout.objects.filter(
        kind=Rollout.Kind.UPDATE,
        created_at__gte=rollout.created_at,
        status__in=(Status.DRAFT, Status.AWAITING_APPROVAL, Status.APPROVED, Status.RUNNING),
        bundle__images__kind__in=rollout.bundle.images.values("kind"),
    )
    return newer.exclude(pk=rollout.pk).distinct()


def treated_bundles() -> dict[int, int]:
    """Return what open rollouts put on the machines that they treated: bundle by machine.

    A roll back is not among them: it goes to each machine's own recorded versions.
    """
    rows = Assignment.objects.filter(
        wave__isnull=False,
        rollout__kind=Rollout.Kind.UPDATE,
        rollout__status__in=(Status.RUNNING, Status.PAUSED, Status.HALTED),
    )
    return dict(rows.order_by("rollout_id").values_list("machine_id", "rollout__bundle_id"))
