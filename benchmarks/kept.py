"""Outcomes of replications, kept as they come, so that a long run that is stopped can go on.

They are good for the sources that made them only: the folder is named after their digest.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("rollouts/analysis", "rollouts/policies.py", *(
    f"benchmarks/{name}.py" for name in ("waves", "cells", "judges", "swift", "peers")
))  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Outcomes of some replications of a cell, by judge."""

    halts: Mapping[str, list[int | None]]
    widens: Mapping[str, list[int | None]]
    excess: Mapping[str, list[float]]
    blind: Mapping[str, int]
    seconds: float


class Named(Protocol):
    """What tells one set of replications from every other."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Kept:
    """Parts by their job's words; without a folder nothing is kept."""

    folder: Path | None

    def get(self, job: Named) -> Part | None:
        path = self._path(job)
        if path is None or not path.exists():
            return None
        return Part(**json.loads(path.read_text())["part"])

    def put(self, job: Named, part: Part) -> None:
        path = self._path(job)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({"job": str(job), "part": asdict(part)}))
        draft.replace(path)

    def _path(self, job: Named) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / f"{hashlib.sha256(str(job).encode()).hexdigest()[:24]}.json"


def sources_digest() -> str:
    """Of everything that an outcome depends on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(ROOT)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
