"""The fleet's routes below /api/v1/."""

from django.urls import path
from rest_framework.routers import SimpleRouter

from fleet.api import (
    capacity,
    firmware,
    gates,
    goodput,
    identity,
    impacts,
    incidents,
    lifecycle,
    repairs,
    tickets,
    views,
)

router = SimpleRouter(trailing_slash=False)
router.register("machines", views.MachineViewSet, basename="machine")
router.register("platforms", views.PlatformViewSet, basename="platform")
router.register("images", views.ImageViewSet, basename="image")
router.register("bundles", views.BundleViewSet, basename="bundle")
router.register("firmware/desired", firmware.DesiredBundleViewSet, basename="desired")
router.register("repairs", repairs.RepairViewSet, basename="repair")
router.register("evidence", repairs.EvidenceViewSet, basename="evidence")
router.register("gates", gates.GateViewSet, basename="gate")
router.register("gate-checks", gates.GateCheckViewSet, basename="gate-check")
router.register("gate-plans", gates.GatePlanViewSet, basename="gate-plan")
router.register("incidents", incidents.IncidentViewSet, basename="incident")
router.register("impacts", impacts.ImpactViewSet, basename="impact")
router.register("cordons", lifecycle.CordonViewSet, basename="cordon")
router.register("notices", lifecycle.NoticeViewSet, basename="notice")
router.register("break-glass", lifecycle.BreakGlassViewSet, basename="break-glass")
router.register("tokens", views.TokenViewSet, basename="token")

urlpatterns = [
    *router.urls,
    path("firmware/runs", firmware.RunView.as_view(), name="firmware-runs"),
    path("firmware/staged", firmware.StagedView.as_view(), name="firmware-staged"),
    path("firmware/rollouts", firmware.PastRolloutView.as_view(), name="firmware-rollouts"),
    path("firmware/reversals", firmware.ReversalView.as_view(), name="firmware-reversals"),
    path("tickets/<str:system>", tickets.TicketView.as_view(), name="tickets"),
    path("telemetry/faults", views.FaultBatchView.as_view(), name="telemetry-faults"),
    path("telemetry/counters", views.CounterBatchView.as_view(), name="telemetry-counters"),
    path(
        "telemetry/observations",
        views.ObservationBatchView.as_view(),
        name="telemetry-observations",
    ),
    path("telemetry/recoveries", views.RecoveryBatchView.as_view(), name="telemetry-recoveries"),
    path("capacity", capacity.CapacityView.as_view(), name="capacity"),
    path("capacity/history", capacity.CapacityHistoryView.as_view(), name="capacity-history"),
    path("goodput", goodput.GoodputView.as_view(), name="goodput"),
    path("queues", capacity.QueuesView.as_view(), name="queues"),
    path("queues/trend", capacity.TrendView.as_view(), name="queues-trend"),
    path("claims", identity.ClaimantsView.as_view(), name="claimants"),
    path("claims/conflicts", identity.ConflictsView.as_view(), name="claim-conflicts"),
    path("machines/<str:name>/claims", identity.ClaimsView.as_view(), name="machine-claims"),
    path("machines/<str:name>/intended", identity.IntendedView.as_view(), name="machine-intended"),
    path("machines/<str:name>/stays", capacity.StaysView.as_view(), name="machine-stays"),
    path("machines/<str:name>/swaps", identity.SwapsView.as_view(), name="machine-swaps"),
    path(
        "machines/<str:name>/swaps/preview",
        identity.SwapPreviewView.as_view(),
        name="machine-swaps-preview",
    ),
    path("parts/<path:serial>", identity.PartView.as_view(), name="part"),
]
