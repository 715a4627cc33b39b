"""What ticket systems know of repairs: what each was told last, and what each has said."""

from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.models.repairs import Repair


class TicketLink(models.Model):
    """How far one ticket system knows one repair; `newest` beyond `told` is due to be told.

    Present state of an outbox that is asked by level: what is told is how the repair stands now,
    with every step since the last one that was told.
    """

    system = models.CharField(max_length=40)
    repair = models.ForeignKey(Repair, on_delete=models.PROTECT, related_name="ticket_links")
    ticket = models.CharField(max_length=100, blank=True, help_text="its key for the repair")
    newest = models.BigIntegerField(default=0, help_text="the repair's newest step")
    told = models.BigIntegerField(default=0, help_text="the newest step that it knows")
    told_at = models.DateTimeField(null=True, blank=True, help_text="by the wall")
    attempts = models.PositiveIntegerField(default=0, help_text="without success since")
    next_at = models.DateTimeField(null=True, blank=True, help_text="by the steady clock")
    last_error = models.CharField(max_length=300, blank=True)
    lease_token = models.CharField(max_length=32, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("repair", "system")
        constraints = (
            models.UniqueConstraint(fields=["system", "repair"], name="ticket_link_once"),
            models.UniqueConstraint(
                fields=["system", "ticket"],
                condition=~models.Q(ticket=""),
                name="ticket_link_ticket_once",
            ),
            models.CheckConstraint(
                condition=models.Q(told__lte=models.F("newest")), name="ticket_told_not_beyond"
            ),
        )
        indexes = (
            models.Index(
                fields=["next_at"],
                condition=models.Q(newest__gt=models.F("told")),
                name="ticket_link_due",
            ),
        )

    def __str__(self) -> str:
        return f"{self.system}: {self.ticket or 'no ticket'} of repair {self.repair_id}"


class TicketReceipt(AppendOnlyModel):
    """A message of a ticket system that was carried out, with what it was answered."""

    system = models.CharField(max_length=40)
    message_id = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    repair = models.ForeignKey(Repair, on_delete=models.PROTECT, related_name="ticket_receipts")
    answer = models.JSONField()
    at = models.DateTimeField(help_text="by the clock")
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["system", "message_id"], name="ticket_receipt_once"),
        )

    def __str__(self) -> str:
        return f"{self.system}: {self.message_id}"
