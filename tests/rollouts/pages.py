"""What tests of the pages share: who looks, and what a rollout's page offers."""

import re
from typing import Any

from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from rollouts.models import Rollout
from tests.factories import NOW, make_user


def client_of(*groups: str, user: Any = None) -> Client:
    user = user or make_user(is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    client = Client()
    client.force_login(user)
    return client


def detail(client: Client, rollout: Rollout) -> str:
    response = client.get(reverse("rollouts:detail", args=(rollout.pk,)))
    assert response.status_code == 200
    return response.content.decode()


def give(client: Client, rollout: Rollout, kind: str, **words: str) -> Any:
    return client.post(reverse("rollouts:order", args=(rollout.pk, kind)), words)


def offered(page: str) -> set[str]:
    return set(re.findall(r'action="/rollouts/\d+/orders/(\w+)"', page))


def lost(rollout: Rollout) -> Any:
    wave = rollout.waves.first()
    return rollout.attempts.create(
        wave=wave,
        block=wave.blocks.create(number=9),
        machine=rollout.assignments.first().machine,
        number=9,
        epoch=0,
        targets=[],
        status="never_returned",
        created_at=NOW,
    )
