"""Plans for tests: a small population, whole windows, few re-assignments."""

from typing import Any

from django.contrib.auth.models import AbstractBaseUser

from fleet.models import FirmwareBundle, FirmwareImage
from rollouts import services
from rollouts.models import Rollout
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
from tests.rollouts.fakes import FakeFleet

OLD, NEW = "1.0", "2.0"


def document(**changes: Any) -> dict[str, Any]:
    """A plan of one wave of eight machines, judged by installs alone, that start at once."""
    caps = {"paced": False, **changes.pop("caps", {"max_unavailable_share": None})}
    return {
        "waves": [{"count": 8, "window_hours": 48}],
        "guardrails": [{"metric": "install", "required": True}],
        "strata": ["platform"],
        "resamples": 999,
        "surveillance_days": 1,
        "look_minutes": 360,
        "max_bricks": 0,
        "caps": caps,
        **changes,
    }


def bundle_of(*kinds: str) -> FirmwareBundle:
    """An approved bundle that takes each kind to the new version; the old images are kept."""
    for kind in kinds or ("bmc",):
        if not FirmwareImage.objects.filter(kind=kind, version=OLD).exists():
            make_image(kind, OLD)
    return make_bundle(images=[make_image(kind, NEW) for kind in kinds or ("bmc",)])


def started(
    fake_fleet: FakeFleet,
    *,
    machines: int = 40,
    kinds: tuple[str, ...] = ("bmc",),
    author: AbstractBaseUser | None = None,
    bundle: FirmwareBundle | None = None,
    per_rack: int | None = None,
    **changes: Any,
) -> Rollout:
    """A running rollout over new machines, written and approved by two people."""
    names = [f"r{number:04}" for number in range(machines)]
    versions = dict.fromkeys(kinds, OLD)
    made = make_machines(machines, names=names, versions=versions)
    for number, machine in enumerate(made if per_rack else ()):
        machine.rack = f"r{number // (per_rack or 1)}"
        machine.save(update_fields=["rack"])
    fake_fleet.add(names, **versions)
    author = author or make_user()
    rollout = services.create_draft(
        name="update",
        bundle=bundle or bundle_of(*kinds),
        selector="platform=dgx-h100",
        document={"mode": "automatic", **document(**changes)},
        author=author,
        now=NOW,
        seed=7,
    )
    services.submit(rollout, actor=author, now=NOW)
    services.approve(rollout, actor=make_user(), now=NOW)
    services.start(rollout, actor=author, now=NOW)
    return rollout
