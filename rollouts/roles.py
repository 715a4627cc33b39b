"""Who may do what: the groups that a new installation starts with, and what each order needs.

Pages, API and admin ask the same function. A stop needs the least right: every group has it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import AppConfig
from django.apps import apps as installed
from django.apps.registry import Apps
from django.contrib.auth.models import (
    AbstractBaseUser,
    AnonymousUser,
    Group,
    Permission,
    PermissionsMixin,
    User,
)
from django.db.models import QuerySet

from rollouts.lifecycle import WaveStatus
from rollouts.models import Order, Rollout

OPERATE = "rollouts.operate_rollout"
APPROVE = "rollouts.approve_rollout"
OVERRIDE = "rollouts.override_rollout"
HALT = "rollouts.halt_rollout"

#: The permission that an order needs; `advance` of a held wave needs more (`permission_for`).
NEEDED: Mapping[Order.Kind, str] = {
    Order.Kind.SUBMIT: OPERATE,
    Order.Kind.APPROVE: APPROVE,
    Order.Kind.DENY: APPROVE,
    Order.Kind.START: OPERATE,
    Order.Kind.PAUSE: OPERATE,
    Order.Kind.RESUME: OPERATE,
    Order.Kind.HALT: HALT,
    Order.Kind.ADVANCE: OPERATE,
    Order.Kind.OVERRIDE: OVERRIDE,
    Order.Kind.EXTEND: OPERATE,
    Order.Kind.SKIP_WAVE: OVERRIDE,
    Order.Kind.RETRY: OPERATE,
    Order.Kind.EXCLUDE: OPERATE,
    Order.Kind.RELEASE: OPERATE,
    Order.Kind.SUPERSEDE: OPERATE,
    Order.Kind.ROLL_BACK: OPERATE,
    Order.Kind.CANCEL: OPERATE,
    Order.Kind.ACKNOWLEDGE: OPERATE,
}

_RUN = ("fleet.work_repair", "fleet.run_gate", "fleet.add_cordon", "fleet.add_jobimpact")
_REPORT = (
    "fleet.add_fault",
    "fleet.add_observation",
    "fleet.add_recovery",
    "fleet.add_change",
    "fleet.add_jobimpact",
)
#: Beyond viewing everything and halting, which every group may.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "viewer": (),
    "reporter": _REPORT,
    "operator": (
        *_REPORT,
        OPERATE,
        "rollouts.add_rollout",
        "rollouts.add_policy",
        "rollouts.add_supplierpackage",
        "fleet.add_firmwarebundle",
        "fleet.add_firmwareimage",
        "fleet.delete_machine",  # which retires it
        *_RUN,
        "fleet.break_glass",
    ),
    "technician": _RUN,
    "reviewer": ("fleet.review_gate",),
    "approver": (
        APPROVE,
        OVERRIDE,
        "fleet.change_firmwarebundle",
        "fleet.add_desiredbundle",
        "fleet.add_gateplan",
    ),
}


def permission_for(kind: Order.Kind, rollout: Rollout) -> str:
    """The permission that this order needs on this rollout.

    Advancing past a verdict that was not given needs the right to override it; confirming a
    widen that the engine advises does not.
    """
    is_past_verdict = (
        kind is Order.Kind.ADVANCE and rollout.waves.filter(status=WaveStatus.HELD).exists()
    )
    return OVERRIDE if is_past_verdict else NEEDED[kind]


def may_order(user: AbstractBaseUser | AnonymousUser, kind: Order.Kind, rollout: Rollout) -> bool:
    """True if this person may give this order on this rollout."""
    return isinstance(user, PermissionsMixin) and user.has_perm(permission_for(kind, rollout))


def second_people() -> QuerySet[User]:
    """Who can stand for an order against a verdict: everybody who may override one."""
    return User.objects.with_perm(OVERRIDE)


def create_groups(sender: AppConfig | None, *, apps: Apps = installed, **_: Any) -> None:
    """Make the groups that are missing, after each migration; those that exist are left alone.

    `apps` is what is migrated at this moment: after a partial migration there may be no tables.
    """
    if not {"auth", "fleet", "rollouts"} <= set(apps.app_configs):
        return
    for name, extra in GROUPS.items():
        group, is_new = Group.objects.get_or_create(name=name)
        if is_new:
            group.permissions.set([*_views(), *_named((HALT, *extra))])


def _views() -> Iterator[Permission]:
    yield from Permission.objects.filter(
        content_type__app_label__in=("fleet", "rollouts"), codename__startswith="view_"
    )


def _named(names: tuple[str, ...]) -> Iterator[Permission]:
    for name in names:
        label, codename = name.split(".")
        yield Permission.objects.get(content_type__app_label=label, codename=codename)
