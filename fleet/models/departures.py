"""How machines leave work, and come to it without their gate."""

from django.conf import settings
from django.db import models

from fleet.models.incidents import Incident
from fleet.models.inventory import Machine


class TakeOut(models.Model):
    """An order to take a machine out of work; it stands until the machine is out.

    Present state: its moves are the machine's `StateChange`s. `onward` is the move that ends the
    drain: to diagnosis, or back to the queue from which an expired break-glass had taken it.
    """

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="take_outs")
    incident = models.ForeignKey(
        Incident, on_delete=models.PROTECT, related_name="take_outs", null=True, blank=True
    )
    reason = models.CharField(max_length=300)
    is_at_once = models.BooleanField(default=False, help_text="without waiting for its job")
    is_by_rule = models.BooleanField(default=False, help_text="of a fault's signature")
    onward = models.CharField(max_length=24, default="take_out", help_text="trigger")
    ordered_at = models.DateTimeField(help_text="by the clock")
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_how = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("-ordered_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine"],
                condition=models.Q(ended_at__isnull=True),
                name="take_out_stands_once_per_machine",
            ),
            models.UniqueConstraint(
                fields=["incident"],
                condition=models.Q(is_by_rule=True),
                name="take_out_by_rule_once_per_incident",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine}: {self.reason}"


class BreakGlass(models.Model):
    """A machine at work without its gate: who answers for it, why, until when, and who looked.

    Present state: what happened to the machine are its `StateChange`s.
    """

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="break_glasses")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    reason = models.CharField(max_length=300)
    old_state = models.CharField(max_length=24, help_text="out of which it was taken")
    began_at = models.DateTimeField(help_text="by the clock")
    until = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_why = models.CharField(max_length=300, blank=True)
    reviewer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    reviewed_at = models.DateTimeField(null=True, blank=True)
    review = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("-began_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=["machine"],
                condition=models.Q(ended_at__isnull=True),
                name="break_glass_stands_once_per_machine",
            ),
            models.CheckConstraint(
                condition=models.Q(until__gt=models.F("began_at")), name="break_glass_ends"
            ),
            models.CheckConstraint(
                condition=models.Q(reviewer__isnull=True) | ~models.Q(reviewer=models.F("person")),
                name="break_glass_reviewed_by_another",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine} until {self.until:%Y-%m-%d %H:%M}"


class SchedulerWord(models.Model):
    """What the scheduler was last told about a machine, and who is telling it anything now.

    `drained_as` is the reason under which it was asked to keep work away; empty: it was told that
    the machine is free, or nothing yet. The lease is by the steady clock.
    """

    machine = models.OneToOneField(Machine, on_delete=models.PROTECT, related_name="scheduler_word")
    drained_as = models.CharField(max_length=100, blank=True)
    told_at = models.DateTimeField(
        null=True, blank=True, help_text="when it was last spoken to of it, by the clock"
    )
    answer = models.CharField(max_length=300, blank=True, help_text="who else has drained it")
    leased_until = models.DateTimeField(null=True, blank=True)
    lease_token = models.CharField(max_length=32, blank=True)

    class Meta:
        indexes = (
            models.Index(
                fields=["told_at"],
                condition=~models.Q(drained_as=""),
                name="scheduler_word_drained",
            ),
        )

    def __str__(self) -> str:
        return f"{self.machine}: {self.drained_as or 'free'}"
