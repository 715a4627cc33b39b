"""The pages about machines."""

from django.urls import path

from fleet.views import repairs

app_name = "fleet"

urlpatterns = [
    path("repairs/", repairs.index, name="repairs"),
    path("repairs/new", repairs.new, name="repair-new"),
    path("repairs/<int:pk>/", repairs.detail, name="repair"),
    path("repairs/<int:pk>/start", repairs.start, name="repair-start"),
    path("repairs/<int:pk>/send-away", repairs.send_away, name="repair-send-away"),
    path("repairs/<int:pk>/cancel", repairs.cancel, name="repair-cancel"),
    path("repairs/<int:pk>/close", repairs.close, name="repair-close"),
    path("repairs/<int:pk>/evidence", repairs.add_evidence, name="repair-evidence"),
    path("evidence/<int:pk>", repairs.evidence, name="evidence"),
]
