"""How the web admin looks and what its side bar offers."""

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _


def stylesheet(request: HttpRequest) -> str:
    return static("rollouts/coalmine.css")


def link(title: Any, icon: str, route: str, permission: str) -> dict[str, Any]:
    """A side bar entry, shown to those who may open it."""
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(route),
        "permission": lambda request: request.user.has_perm(permission),
    }


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Coalmine",
    "SITE_HEADER": "Coalmine",
    "SITE_SUBHEADER": _("Firmware canary rollouts with evidence"),
    "SITE_URL": reverse_lazy("rollouts:home"),
    "SITE_SYMBOL": "flutter_dash",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "STYLES": [stylesheet],
    "LOGIN": {"redirect_after": reverse_lazy("rollouts:home")},
    "SIDEBAR": {
        "show_search": False,
        "show_all_applications": True,
        "navigation": [
            {
                "title": _("Operate"),
                "items": [
                    link(_("Home"), "home", "rollouts:home", "rollouts.view_rollout"),
                    link(_("Rollouts"), "moving", "rollouts:index", "rollouts.view_rollout"),
                ],
            },
            {
                "title": _("Fleet"),
                "items": [
                    link(_("Machines"), "dns", "admin:fleet_machine_changelist", "fleet.view_machine"),
                    link(
                        _("Bundles"),
                        "deployed_code",
                        "admin:fleet_firmwarebundle_changelist",
                        "fleet.view_firmwarebundle",
                    ),
                    link(
                        _("Version history"),
                        "history",
                        "admin:fleet_firmwarerecord_changelist",
                        "fleet.view_firmwarerecord",
                    ),
                    link(_("Faults"), "error", "admin:fleet_fault_changelist", "fleet.view_fault"),
                ],
            },
            {
                "title": _("Evidence"),
                "items": [
                    link(
                        _("Decisions"),
                        "gavel",
                        "admin:rollouts_decision_changelist",
                        "rollouts.view_decision",
                    ),
                    link(
                        _("Evaluations"),
                        "query_stats",
                        "admin:rollouts_evaluation_changelist",
                        "rollouts.view_evaluation",
                    ),
                    link(
                        _("Orders"),
                        "assignment",
                        "admin:rollouts_order_changelist",
                        "rollouts.view_order",
                    ),
                ],
            },
        ],
    },
}
