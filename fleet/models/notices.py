"""What somebody has to know about a machine, or a pool, as long as it is so."""

from django.db import models

from fleet.models.inventory import Machine


class Notice(models.Model):
    """One standing word: `overdue`, `gate_bypassed`, `break_glass`, …; cleared when it is over.

    Of a kind one stands per machine, or per `subject` where it is about more than one machine.
    """

    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="notices", null=True, blank=True
    )
    subject = models.CharField(max_length=210, blank=True, help_text="such as pool dfw/train")
    kind = models.CharField(max_length=40)
    said = models.CharField(max_length=500)
    raised_at = models.DateTimeField(help_text="by the clock")
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-raised_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine", "kind"],
                condition=models.Q(cleared_at__isnull=True, machine__isnull=False),
                name="notice_stands_once_per_machine",
            ),
            models.UniqueConstraint(
                fields=["subject", "kind"],
                condition=models.Q(cleared_at__isnull=True, machine__isnull=True),
                name="notice_stands_once_per_subject",
            ),
            models.CheckConstraint(
                condition=models.Q(machine__isnull=False) ^ ~models.Q(subject=""),
                name="notice_about_machine_or_subject",
            ),
        )
        indexes = (
            models.Index(
                fields=["kind", "raised_at"],
                condition=models.Q(cleared_at__isnull=True),
                name="notice_standing",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine or self.subject}: {self.kind}"
