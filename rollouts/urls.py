"""The operators' pages."""

from django.urls import path

from rollouts.views import (
    changes,
    detail,
    firmware,
    fixes,
    gates,
    home,
    orders,
    plans,
    supplier,
)

app_name = "rollouts"

urlpatterns = [
    path("firmware/", firmware.drift, name="firmware"),
    path("firmware/machines/", firmware.machines, name="firmware-machines"),
    path("firmware/machines/<str:name>/", firmware.machine, name="firmware-machine"),
    path("firmware/wanted/", firmware.wanted, name="firmware-wanted"),
    path("firmware/runs/", firmware.runs, name="firmware-runs"),
    path("", home.home, name="home"),
    path("supplier/", supplier.index, name="supplier-case"),
    path("supplier/package", supplier.package, name="supplier-package"),
    path("fixes/", fixes.index, name="fixes"),
    path("changes/", changes.what_changed, name="changes"),
    path("rollouts/", home.index, name="index"),
    path("rollouts/new", plans.new, name="new"),
    path("rollouts/halt-all", orders.halt_all, name="halt-all"),
    path("rollouts/<int:pk>/", detail.detail, name="detail"),
    path("rollouts/<int:pk>/now-what/", detail.now_what, name="now-what"),
    path("rollouts/<int:pk>/gates/", gates.gates, name="gates"),
    path("rollouts/<int:pk>/plan", plans.plan, name="plan"),
    path("rollouts/<int:pk>/preview", plans.preview, name="preview"),
    path("rollouts/<int:pk>/parts/<slug:name>", detail.part, name="part"),
    path("rollouts/<int:pk>/orders/<str:kind>", orders.give_order, name="order"),
    path("rollouts/<int:pk>/attempts/<int:attempt_pk>/triage", orders.triage, name="triage"),
    path("rollouts/<int:pk>/attempts/<int:attempt_pk>/clear", orders.clear, name="clear"),
]
