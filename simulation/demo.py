"""The demo: set up once, drive both rollouts to their end, tell whether they ended as they should.

Every step looks at what is there already, so a demo that was killed goes on where it stood.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from fleet import clock
from fleet import selectors as fleet_selectors
from fleet import services as fleet_services
from fleet.models import (
    BundleStatus,
    CollectorCursor,
    FirmwareBundle,
    FirmwareImage,
    Machine,
    Platform,
)
from fleet.tasks import collect
from rollouts import services
from rollouts.lifecycle import Status
from rollouts.models import Attempt, Rollout
from simulation.driver import Driver, use_stepped_clock
from simulation.errors import NotADemo
from simulation.models import VirtualFleet, VirtualMachine
from simulation.parameters import Parameters
from simulation.scenario import (
    HISTORY,
    OLD_BUNDLE,
    ORIGIN,
    STORIES,
    Story,
    fleet_parameters,
    plan_document,
)
from simulation.services import create_fleet

logger = logging.getLogger(__name__)

AUTHOR, APPROVER = "author", "approver"
TECHNICIAN, REVIEWER = "technician", "reviewer"
USUAL_MACHINES = 600
#: Where a rollout of the demo moves no more.
ENDED = frozenset({Status.COMPLETED, Status.ROLLED_BACK, Status.CANCELLED})
OnStep = Callable[[datetime], None]


def check_database() -> None:
    """Refuse a database that holds machines which are not virtual.

    Raises
    ------
    NotADemo
        If there are any: the demo moves the one clock, which real machines follow.
    """
    real = _real_machines().order_by("name")
    if real.exists():
        raise NotADemo(
            f"this database holds {real.count()} machines that are not the demo's, such as "
            f"{real[0].name}; set DATABASE_URL to a database of its own"
        )


def is_virtual_only() -> bool:
    """Tell whether the database holds a virtual fleet and nothing but it."""
    return VirtualFleet.objects.exists() and not _real_machines().exists()


def _real_machines() -> QuerySet[Machine]:
    return Machine.objects.exclude(pk__in=VirtualMachine.objects.values("machine"))


# --- setting up --------------------------------------------------------------------------------


def people() -> dict[str, User]:
    """Return the demo's people, made if need be; nobody can do the part of the next one."""
    return {
        AUTHOR: _person(AUTHOR, groups=("operator",)),
        APPROVER: _person(APPROVER, groups=("approver", "operator")),
        TECHNICIAN: _person(TECHNICIAN, groups=("technician",)),
        REVIEWER: _person(REVIEWER, groups=("reviewer",)),
    }


def password_of(name: str) -> str:
    """Return a person's password: it follows from the installation's secret, so none is stored."""
    return salted_hmac("simulation.demo.login", name).hexdigest()[:12]


def _person(name: str, *, groups: tuple[str, ...]) -> User:
    person, is_new = User.objects.get_or_create(username=name, defaults={"is_staff": True})
    if is_new:
        person.set_password(password_of(name))
        person.save()
        person.groups.set(Group.objects.filter(name__in=groups))
    return person


def set_up(parameters: Parameters, *, seed: int) -> VirtualFleet:
    """Make the fleet, its people and its bundles, as far as they are not there yet."""
    check_database()
    fleet = VirtualFleet.objects.first()
    if fleet is None:
        use_stepped_clock(at=ORIGIN)
        fleet = create_fleet(
            parameters, seed=seed, origin=ORIGIN, purpose="demo", vouched_by="demo"
        )
    use_stepped_clock(at=ORIGIN)
    everyone = people()
    platforms = [_platform(story) for story in STORIES]
    _bundle(*OLD_BUNDLE, platforms=platforms, everyone=everyone)
    for story, platform in zip(STORIES, platforms, strict=True):
        _bundle(story.bundle, story.version, story.images, platforms=[platform], everyone=everyone)
    return fleet


def _platform(story: Story) -> Platform:
    return Platform.objects.get(name=story.platform)


def _bundle(
    name: str,
    version: str,
    images: Mapping[str, str],
    *,
    platforms: list[Platform],
    everyone: Mapping[str, User],
) -> FirmwareBundle:
    bundle = FirmwareBundle.objects.filter(name=name, version=version).first()
    if bundle is None:
        bundle = fleet_services.create_bundle(
            name=name,
            version=version,
            images=[_image(kind, number) for kind, number in images.items()],
            platforms=platforms,
            author=everyone[AUTHOR],
            now=clock.now(),
        )
    if bundle.status == BundleStatus.DRAFT:
        fleet_services.approve_bundle(bundle, approver=everyone[APPROVER], now=clock.now())
    return bundle


def _image(kind: str, version: str) -> FirmwareImage:
    found = FirmwareImage.objects.filter(kind=kind, vendor="NVIDIA", version=version).first()
    return found or fleet_services.create_image(kind=kind, vendor="NVIDIA", version=version)


def release_leases() -> None:
    """Give back what a killed process of the embedded shape held: nobody else can hold it."""
    if not settings.IS_EMBEDDED:
        return
    for model in (Rollout, Attempt, CollectorCursor, VirtualFleet):
        model.objects.exclude(leased_until=None).update(leased_until=None, lease_token="")


# --- running -----------------------------------------------------------------------------------


def start_rollouts(*, seed: int, document: Mapping[str, Any] | None = None) -> list[Rollout]:
    """Draft, submit, approve and start both rollouts, each as far as it has not gone yet."""
    everyone, plan = people(), document or plan_document()
    return [
        _start(story, plan, seed=seed * len(STORIES) + number, everyone=everyone)
        for number, story in enumerate(STORIES)
    ]


def _start(
    story: Story, plan: Mapping[str, Any], *, seed: int, everyone: Mapping[str, User]
) -> Rollout:
    now = clock.now()
    rollout = Rollout.objects.filter(name=story.name).first() or services.create_draft(
        name=story.name,
        bundle=FirmwareBundle.objects.get(name=story.bundle, version=story.version),
        selector=f"platform={story.platform}",
        document=plan,
        author=everyone[AUTHOR],
        now=now,
        seed=seed,
    )
    if rollout.status == Status.DRAFT:
        services.submit(rollout, actor=everyone[AUTHOR], now=now)
        rollout.refresh_from_db()
    if rollout.status == Status.AWAITING_APPROVAL:
        services.approve(rollout, actor=everyone[APPROVER], now=now)
        rollout.refresh_from_db()
    if rollout.status == Status.APPROVED:
        services.start(rollout, actor=everyone[AUTHOR], now=now)
        rollout.refresh_from_db()
    return rollout


def add_up() -> None:
    """Make what pages read of whole days, which else waits for the beat; safe to repeat."""
    fleet_services.keep_days(now=clock.now())
    while fleet_services.summarise(now=clock.now()):
        logger.info("summaries of telemetry are still being made")


def begin_living(*, seed: int) -> None:
    """Make the fleet with its period before and start both rollouts; no worker is needed."""
    set_up(fleet_parameters(USUAL_MACHINES, harm="faults"), seed=seed)
    clock.step_to(ORIGIN + HISTORY)
    while fleet_selectors.collected_until() != ORIGIN + HISTORY:
        collect()
    start_rollouts(seed=seed)


def run(
    fleet: VirtualFleet,
    *,
    on_history: OnStep = lambda now: None,
    on_step: OnStep = lambda now: None,
    document: Mapping[str, Any] | None = None,
) -> list[Rollout]:
    """Let the period before pass, start both rollouts, and drive them to their ends.

    A Celery worker has to be running; in the embedded shape it is a thread of this process.
    """
    release_leases()
    Driver(fleet, on_step=on_history).run_until(ORIGIN + HISTORY)
    rollouts = start_rollouts(seed=fleet.seed, document=document)
    Driver(fleet, on_step=on_step).run_while(lambda: not _have_ended(rollouts))
    add_up()
    VirtualFleet.objects.filter(pk=fleet.pk, notes={}).update(
        notes={"ended_at": timezone.now().isoformat()}
    )
    return rollouts


def _have_ended(rollouts: list[Rollout]) -> bool:
    """Refresh the rollouts, and tell whether none of them moves any more.

    A held wave waits for people, and a demo has none: that is an end too.
    """
    for rollout in rollouts:
        rollout.refresh_from_db()
    return all(has_ended(rollout) for rollout in rollouts)


def has_ended(rollout: Rollout) -> bool:
    is_held = rollout.status == Status.RUNNING and rollout.waves.filter(status="held").exists()
    is_left = rollout.status == Status.HALTED and rollout.due_at is None
    return rollout.status in ENDED or is_held or is_left


def ended_as_it_should(rollout: Rollout) -> bool:
    """Tell whether a rollout of the demo ended as its bundle deserves."""
    story = next(story for story in STORIES if story.name == rollout.name)
    return rollout.status == story.ending
