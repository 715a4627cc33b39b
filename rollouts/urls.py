"""The operators' pages."""

from django.urls import path

from rollouts import firmware_views, fix_views, gate_views, supplier_views, views

app_name = "rollouts"

urlpatterns = [
    path("firmware/", firmware_views.drift, name="firmware"),
    path("firmware/machines/", firmware_views.machines, name="firmware-machines"),
    path("firmware/machines/<str:name>/", firmware_views.machine, name="firmware-machine"),
    path("firmware/wanted/", firmware_views.wanted, name="firmware-wanted"),
    path("firmware/runs/", firmware_views.runs, name="firmware-runs"),
    path("", views.home, name="home"),
    path("supplier/", supplier_views.index, name="supplier-case"),
    path("supplier/package", supplier_views.package, name="supplier-package"),
    path("fixes/", fix_views.index, name="fixes"),
    path("changes/", views.what_changed, name="changes"),
    path("rollouts/", views.index, name="index"),
    path("rollouts/new", views.new, name="new"),
    path("rollouts/halt-all", views.halt_all, name="halt-all"),
    path("rollouts/<int:pk>/", views.detail, name="detail"),
    path("rollouts/<int:pk>/now-what/", views.now_what, name="now-what"),
    path("rollouts/<int:pk>/gates/", gate_views.gates, name="gates"),
    path("rollouts/<int:pk>/plan", views.plan, name="plan"),
    path("rollouts/<int:pk>/preview", views.preview, name="preview"),
    path("rollouts/<int:pk>/parts/<slug:name>", views.part, name="part"),
    path("rollouts/<int:pk>/orders/<str:kind>", views.give_order, name="order"),
    path("rollouts/<int:pk>/attempts/<int:attempt_pk>/triage", views.triage, name="triage"),
    path("rollouts/<int:pk>/attempts/<int:attempt_pk>/clear", views.clear, name="clear"),
]
