"""Whose a machine is while it is in a state: teams take roles, people take machines in hand."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from fleet.appendonly import AppendOnlyModel
from fleet.lifecycle import Role
from fleet.models.inventory import Machine, Team


class RoleTeam(models.Model):
    """Which team takes an owner role; empty site or pool means every one, the narrowest wins."""

    Role: ClassVar = Role

    role = models.CharField(max_length=24, choices=[(role.value, role.value) for role in Role])
    site = models.CharField(max_length=100, blank=True, help_text="empty: every site")
    pool = models.CharField(max_length=100, blank=True, help_text="empty: every pool")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="places")

    class Meta:
        ordering = ("role", "site", "pool")
        constraints = (
            models.UniqueConstraint(fields=["role", "site", "pool"], name="role_team_once"),
        )

    def __str__(self) -> str:
        place = " ".join(filter(None, (self.site, self.pool))) or "everywhere"
        return f"{self.role}, {place}: {self.team}"


class HandOver(AppendOnlyModel):
    """One change of who has a machine: taken in hand, given back, or handed to somebody else."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="hand_overs")
    state = models.CharField(max_length=24, help_text="in which it happened")
    old_team = models.ForeignKey(
        Team, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    new_team = models.ForeignKey(
        Team, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    old_person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    new_person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    word = models.CharField(max_length=500, blank=True, help_text="what the next one has to know")
    at = models.DateTimeField(help_text="by the clock")
    actor = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True, blank=True
    )
    recorded_at = models.DateTimeField(help_text="by the wall")

    class Meta:
        ordering = ("machine", "at", "pk")

    def __str__(self) -> str:
        return f"{self.machine}: {self.new_person or self.new_team or 'nobody'}"
