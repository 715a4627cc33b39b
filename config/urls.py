"""All routes. Each app keeps its own; this file gives them their prefix."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from config import health

urlpatterns = [
    path("", include("rollouts.urls")),
    path("", include("fleet.urls")),
    path("admin/", admin.site.urls),
    path("api/v1/", include("fleet.api.urls")),
    path("api/v1/", include("rollouts.api.urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    # The page's script is a file of its own, as the content security policy wants it.
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("livez", health.alive),
    path("readyz", health.ready),
    path("healthz", health.deciding),
]

handler404 = "config.api.not_found"
handler500 = "config.api.server_error"
