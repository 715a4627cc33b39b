"""The fault catalogue that ships with the product: NVIDIA XID codes and the common families.

A signature's name is stable (`xid.119`, `nic.link_flap`), so that a guardrail can name a family
by a glob pattern. `kind` says whether its faults belong in the primary rate (`hard`), in a rate
of their own (`soft`) or in none (`not_counted`: applications, shared causes, plans).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).parent / "signatures.json"


def catalogue() -> list[Mapping[str, Any]]:
    """Return the rows of the catalogue, named as the fields of `FaultSignature`."""
    return json.loads(CATALOGUE.read_text(encoding="utf-8"))


def load(apps: Any, editor: Any) -> None:
    """Add what the catalogue has and the table has not; a site's own edits stand.

    The reverse step is a no-op: faults may refer to the rows by then.
    """
    signatures = apps.get_model("fleet", "FaultSignature").objects.using(editor.connection.alias)
    known = set(signatures.values_list("name", flat=True))
    # An early migration runs before the later columns are there; a later one fills them.
    fields = {field.name for field in signatures.model._meta.get_fields()}
    new = [
        signatures.model(**{name: value for name, value in row.items() if name in fields})
        for row in catalogue()
        if row["name"] not in known
    ]
    signatures.bulk_create(new)
