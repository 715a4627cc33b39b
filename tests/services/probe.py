"""A task for the tests of the worker itself; the product does not know it."""

from celery import shared_task
from django.contrib.auth.models import Group


@shared_task(name="tests.services.make_group")
def make_group(name: str) -> None:
    """Safe to repeat: a group of that name exists once."""
    Group.objects.get_or_create(name=name)
