"""Counters as machines report them; what they rise by are faults."""

from django.db import models

from fleet.models.inventory import Machine
from fleet.models.telemetry import AHEAD


class CounterSample(models.Model):
    """One value of one counter, named as the signature that it counts; ages out, never edited.

    `is_backwards`: it fell without a boot. What happened there is not known; it is left out of
    the rate and shown as missing evidence.
    """

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="counters")
    signature = models.CharField(max_length=100)
    time = models.DateTimeField()
    value = models.PositiveBigIntegerField()
    boot_id = models.CharField(max_length=64)
    is_backwards = models.BooleanField(default=False, db_default=False)
    source = models.CharField(max_length=100)
    source_key = models.CharField(max_length=200)
    is_ahead = models.BooleanField(default=False, help_text=AHEAD)
    received_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["source", "source_key"], name="counter_once"),
        )
        indexes = (
            models.Index(fields=["machine", "signature", "time"], name="counter_series"),
            models.Index(
                fields=["time"], condition=models.Q(is_backwards=True), name="counter_backwards"
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine} {self.signature} {self.value}"
