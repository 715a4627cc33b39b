"""The operators' pages: what moves, one rollout, and the orders that steer it.

Pages parse, call and answer; every number comes from a read, every change from
`rollouts.services`.
"""

from django.shortcuts import get_object_or_404

from fleet.views import needs
from rollouts.models import Rollout

#: Lets in who is logged in and may see rollouts.
operators_page = needs("rollouts.view_rollout")


def get_rollout(pk: int) -> Rollout:
    rows = Rollout.objects.select_related("bundle", "author", "approver", "parent")
    return get_object_or_404(rows, pk=pk)
