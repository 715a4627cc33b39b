"""Packages for suppliers: made once, handed out, and written down by their digest."""

import hashlib
from collections.abc import Collection
from datetime import datetime

from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.models import SupplierPackage
from rollouts.supplier import gather, render


def make_package(
    case: str,
    *,
    form: str,
    texts: Collection[str] = (),
    actor: str,
    user: User | None = None,
    now: datetime,
) -> tuple[SupplierPackage, bytes]:
    """Make the package of a case, and keep who made it, its digest and what was left out.

    Raises
    ------
    PackageRefused
        If nothing names this case, or a text that is let through is none of it.
    """
    package = gather(case, texts=texts, now=now)
    content = render(package, form=form)
    record = SupplierPackage.objects.create(
        case=case,
        format=form,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        machines=package.machines,
        incidents=len(package.incidents),
        rows=len(package.rows),
        left_out=dict(package.left_out),
        texts=package.let_through,
        actor=actor,
        user=user,
        at=now,
        recorded_at=timezone.now(),
    )
    return record, content
