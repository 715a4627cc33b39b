"""What the scheduler says is running: jobs, whose they are, and when they are expected to end."""

from django.db import models


class Job(models.Model):
    """One job as the scheduler last reported it; `Machine.job` names the one on a machine.

    `expected_end` is the scheduler's forecast, empty where it has none. A job that the scheduler
    no longer reports is not running, and keeps the time at which that was first seen.
    """

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=100, blank=True, help_text="pre-training, inference, …")
    owner = models.CharField(max_length=100, blank=True, help_text="user or team, by the scheduler")
    partition = models.CharField(max_length=100, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    expected_end = models.DateTimeField(null=True, blank=True)
    is_running = models.BooleanField(default=True)
    ended_at = models.DateTimeField(null=True, blank=True, help_text="first seen to be over")
    seen_at = models.DateTimeField(help_text="by the clock, of the scheduler's last word")

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(is_running=True, ended_at__isnull=True)
                | models.Q(is_running=False, ended_at__isnull=False),
                name="job_runs_or_has_ended",
            ),
        )
        indexes = (
            models.Index(
                fields=["expected_end"],
                condition=models.Q(is_running=True),
                name="job_running_end",
            ),
        )

    def __str__(self) -> str:
        return self.name
