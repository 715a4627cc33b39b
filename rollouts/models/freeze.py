"""Times in which nobody starts attempts, whatever a plan says."""

from django.conf import settings
from django.db import models


class Freeze(models.Model):
    """No attempt starts between `start` and `end` at these sites and pools; none: everywhere.

    A freeze is not edited: it is lifted, with who and when, and another one set.
    """

    reason = models.CharField(max_length=300)
    start = models.DateTimeField()
    end = models.DateTimeField()
    sites = models.JSONField(default=list, blank=True, help_text="empty: every site")
    pools = models.JSONField(default=list, blank=True, help_text="empty: every pool")
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="freezes"
    )
    created_at = models.DateTimeField()
    lifted_at = models.DateTimeField(null=True, blank=True)
    lifted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="freezes_lifted",
        null=True,
        blank=True,
    )

    class Meta:
        ordering = ("-start", "-pk")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(end__gt=models.F("start")), name="freeze_has_length"
            ),
            models.CheckConstraint(
                condition=models.Q(lifted_at__isnull=True, lifted_by__isnull=True)
                | models.Q(lifted_at__isnull=False, lifted_by__isnull=False),
                name="freeze_lifted_by_somebody",
            ),
        )
        indexes = (models.Index(fields=["end"], name="freeze_end"),)

    def __str__(self) -> str:
        return f"{self.reason}, {self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M}"
