"""The operators' pages."""

from django.urls import path

from rollouts import views

app_name = "rollouts"

urlpatterns = [
    path("", views.home, name="home"),
    path("rollouts/", views.index, name="index"),
    path("rollouts/halt-all", views.halt_all, name="halt-all"),
    path("rollouts/<int:pk>/", views.detail, name="detail"),
    path("rollouts/<int:pk>/parts/<slug:name>", views.part, name="part"),
    path("rollouts/<int:pk>/orders/<str:kind>", views.give_order, name="order"),
    path("rollouts/<int:pk>/attempts/<int:attempt_pk>/triage", views.triage, name="triage"),
]
