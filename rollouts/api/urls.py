"""The rollouts' routes below /api/v1/."""

from django.urls import path
from rest_framework.routers import SimpleRouter

from rollouts.api import changes, compliance, fixes, freezes, gates, previews, supplier, views

router = SimpleRouter(trailing_slash=False)
router.register("rollouts", views.RolloutViewSet, basename="rollout")
router.register("policies", views.PolicyViewSet, basename="policy")
router.register("freezes", freezes.FreezeViewSet, basename="freeze")
router.register("supplier-packages", supplier.SupplierPackageViewSet, basename="supplier-package")

_RECORDS = r"rollouts/(?P<rollout_pk>[0-9]+)"
router.register(rf"{_RECORDS}/previews", previews.PreviewViewSet, basename="preview")
router.register(rf"{_RECORDS}/waves", views.WaveViewSet, basename="wave")
router.register(rf"{_RECORDS}/attempts", views.AttemptViewSet, basename="attempt")
router.register(rf"{_RECORDS}/orders", views.OrderViewSet, basename="order")
router.register(rf"{_RECORDS}/decisions", views.DecisionViewSet, basename="decision")
router.register(rf"{_RECORDS}/evaluations", views.EvaluationViewSet, basename="evaluation")

urlpatterns = [
    *router.urls,
    path("firmware/compliance", compliance.ComplianceView.as_view(), name="compliance"),
    path(
        "firmware/compliance/machines",
        compliance.ComplianceListView.as_view(),
        name="compliance-machines",
    ),
    path(
        "machines/<str:name>/explanation",
        views.MachineExplanationView.as_view(),
        name="machine-explanation",
    ),
    path("rollouts/<int:rollout_pk>/gates", gates.RolloutGatesView.as_view(), name="rollout-gates"),
    path(
        "rollouts/<int:rollout_pk>/waves/<int:number>/review-gates",
        gates.WaveGateReviewView.as_view(),
        name="wave-review-gates",
    ),
    path("changes", changes.ChangeView.as_view(), name="changes"),
    path("supplier-cases", supplier.SupplierCaseView.as_view(), name="supplier-cases"),
    path("fixes", fixes.FixView.as_view(), name="fixes"),
    path("suspects", changes.SuspectView.as_view(), name="suspects"),
    path("bundles/<int:pk>/withdraw", views.WithdrawView.as_view(), name="bundle-withdraw"),
]
