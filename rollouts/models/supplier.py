"""What was given to suppliers: one record per package, with its digest; never the package."""

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel


class SupplierPackage(AppendOnlyModel):
    """One file made for one supplier case: who made it, what left and what was left out."""

    class Format(models.TextChoices):
        HTML = "html"
        JSON = "json"
        CSV = "csv"

    case = models.CharField(max_length=100)
    format = models.CharField(max_length=4, choices=Format)
    sha256 = models.CharField(max_length=64, help_text="of the file as it was handed out")
    size_bytes = models.PositiveBigIntegerField()
    machines = models.PositiveIntegerField()
    incidents = models.PositiveIntegerField()
    rows = models.PositiveIntegerField(help_text="of its time line")
    left_out = models.JSONField(help_text="how many of which kind did not leave")
    texts = models.JSONField(default=list, help_text="free texts that somebody let through")
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    at = models.DateTimeField(help_text="by the clock")
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("-pk",)
        indexes = (models.Index(fields=["case"], name="supplier_package_case"),)

    def __str__(self) -> str:
        return f"{self.case}: {self.format} {self.sha256[:12]}"
