"""All routes. Each app keeps its own; this file gives them their prefix."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from config import health

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("livez", health.alive),
    path("readyz", health.ready),
]
