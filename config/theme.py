"""How the web admin looks and what its side bar offers."""

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _


def stylesheet(request: HttpRequest) -> str:
    return static("rollouts/coalmine.css")


def script(request: HttpRequest) -> str:
    return static("rollouts/coalmine.js")


def icon(request: HttpRequest) -> str:
    return static("rollouts/coalmine.svg")


def link(title: Any, symbol: str, route: str, permission: str) -> dict[str, Any]:
    """A side bar entry, shown to those who may open it."""
    address = reverse_lazy(route)

    def is_here(request: HttpRequest) -> bool:
        # Every address begins with the home page's.
        here = str(address)
        return request.path == here or (here != "/" and request.path.startswith(here))

    return {
        "title": title,
        "icon": symbol,
        "link": address,
        "active": is_here,
        "permission": lambda request: request.user.has_perm(permission),
    }


#: A blue that stands off from both backgrounds, with white text on it.
PRIMARY = {
    "50": "oklch(97% .014 254.604)",
    "100": "oklch(93.2% .032 255.585)",
    "200": "oklch(88.2% .059 254.128)",
    "300": "oklch(80.9% .105 251.813)",
    "400": "oklch(70.7% .165 254.624)",
    "500": "oklch(62.3% .214 259.815)",
    "600": "oklch(54.6% .245 262.881)",
    "700": "oklch(48.8% .243 264.376)",
    "800": "oklch(42.4% .199 265.638)",
    "900": "oklch(37.9% .146 265.522)",
    "950": "oklch(28.2% .091 267.935)",
}


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Coalmine",
    "SITE_HEADER": "Coalmine",
    "SITE_SUBHEADER": _("Firmware canary rollouts with evidence"),
    "SITE_URL": reverse_lazy("rollouts:home"),
    "SITE_SYMBOL": "flutter_dash",
    "ENVIRONMENT": "config.pulse.banner",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": icon}],
    "COLORS": {"primary": PRIMARY},
    "STYLES": [stylesheet],
    "SCRIPTS": [script],
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
                    link(_("What changed"), "history", "rollouts:changes", "rollouts.view_rollout"),
                    link(
                        _("Firmware"),
                        "fact_check",
                        "rollouts:firmware",
                        "fleet.view_firmwarerecord",
                    ),
                ],
            },
            {
                "title": _("Machines come back"),
                "items": [
                    link(
                        _("Return to service"), "view_kanban", "fleet:return", "fleet.view_machine"
                    ),
                    link(
                        _("Capacity"), "stacked_line_chart", "fleet:capacity", "fleet.view_machine"
                    ),
                    link(_("Goodput"), "speed", "fleet:goodput", "fleet.view_jobimpact"),
                    link(_("Incidents"), "crisis_alert", "fleet:incidents", "fleet.view_incident"),
                    link(
                        _("Did the fix work?"),
                        "query_stats",
                        "rollouts:fixes",
                        "fleet.view_incident",
                    ),
                    link(
                        _("Supplier's cases"),
                        "outbox",
                        "rollouts:supplier-case",
                        "rollouts.add_supplierpackage",
                    ),
                    link(_("Repairs"), "build", "fleet:repairs", "fleet.view_repair"),
                    link(_("Gates"), "door_front", "fleet:gates", "fleet.view_gate"),
                    link(_("Parts"), "memory", "fleet:parts", "fleet.view_machine"),
                    link(_("Cordons"), "block", "fleet:cordons", "fleet.view_cordon"),
                    link(_("Notices"), "notifications", "fleet:notices", "fleet.view_notice"),
                ],
            },
            {
                "title": _("Fleet"),
                "items": [
                    link(
                        _("Machines"), "dns", "admin:fleet_machine_changelist", "fleet.view_machine"
                    ),
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
