"""Public recordings, which are no part of the project: beside it, or where a variable says."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("COALMINE_RECORDINGS", ROOT.parent / "shared" / "data"))


def recording(name: str) -> Path:
    """Return the recording's file or folder; where it is not here, skip and say so."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no recording at {path}; set COALMINE_RECORDINGS to where it is")
    return path
