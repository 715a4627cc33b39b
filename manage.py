#!/usr/bin/env python3
"""Run Coalmine's commands; on a fresh clone, make its environment first.

This file imports the standard library only and parses on old interpreters, so
that it can say what is missing. It acts only where the packages cannot be
imported: images and CI bring their own environment and are left alone.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements" / "dev.txt"
STAMP = "coalmine.stamp"  # written last: an environment without it is half made
NEEDED = ("django", "unfold", "celery")
OLDEST = (3, 11)


def main() -> None:
    problem = version_problem(sys.version_info[:2])
    if problem:
        stop(problem)
    if missing_packages():
        enter(environment_folder())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    if sys.argv[1:2] == ["test"]:
        run_tests(sys.argv[2:])

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


def version_problem(version: "tuple[int, ...]") -> "str | None":
    """Say what is wrong with this interpreter, or nothing."""
    if tuple(version[:2]) >= OLDEST:
        return None
    return "Coalmine needs Python {}.{} or newer; this is Python {}.{}.".format(
        *OLDEST, *version[:2]
    )


def missing_packages() -> "list[str]":
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def environment_folder() -> Path:
    return Path(os.environ.get("COALMINE_VENV") or ROOT / ".venv").absolute()


def lock_digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_complete(folder: Path, *, digest: str) -> bool:
    """True if the environment was made to the end, and from this very lock."""
    stamp = folder / STAMP
    return python_of(folder).exists() and stamp.is_file() and stamp.read_text().strip() == digest


def may_clear(folder: Path) -> bool:
    """True for nothing, an empty folder, or an environment, however far it got."""
    if not folder.exists():
        return True
    names = {entry.name for entry in folder.iterdir()}
    return "pyvenv.cfg" in names or names <= {"bin", "include", "lib", "lib64"}


def enter(folder: Path) -> None:
    """Go on in the project's environment; make it where it is absent, old or half made."""
    if Path(sys.prefix).absolute() == folder:
        stop(
            "{} lacks {}; remove the folder and run this again.".format(
                folder, ", ".join(missing_packages())
            )
        )
    digest = lock_digest(LOCK)
    if not is_complete(folder, digest=digest):
        with only_one(folder):
            if not is_complete(folder, digest=digest):
                make(folder, digest=digest)
    python = str(python_of(folder))
    os.execv(python, [python, *sys.argv])


def make(folder: Path, *, digest: str) -> None:
    """Make the environment from the hashed lock; the stamp comes last."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        stop(
            "Python's venv module is missing. On Debian or Ubuntu:\n"
            "    sudo apt install python3-venv\nthen run this again."
        )
    if not may_clear(folder):
        stop(
            f"{folder} is not a Python environment; Coalmine will not overwrite it. "
            "Set COALMINE_VENV to a folder that may be made."
        )
    started = time.monotonic()
    say(f"first run: making {folder} from {LOCK.relative_to(ROOT)} (half a minute or so) ...")
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python_of(folder)), "-m", "pip", "--disable-pip-version-check"]
    install = ["install", "-qq", "--require-hashes", "--requirement", str(LOCK)]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip + install):
        # The child keeps the lock open: if this process is killed, the next one
        # waits for the child's end before it clears the folder.
        status = subprocess.call(command, env=clean_environment(), close_fds=False)
        if status:
            stop("could not make {}: `{}` ended with {}".format(folder, " ".join(command), status))
    (folder / STAMP).write_text(digest + "\n")
    say(f"{folder} is ready after {time.monotonic() - started:.0f} s")


def clean_environment() -> "dict[str, str]":
    """The environment without what would lead pip or venv somewhere else."""
    astray = {"PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}
    return {name: value for name, value in os.environ.items() if name not in astray}


class only_one:
    """Let one process at a time make the environment; others wait for it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.with_name(folder.name + ".lock")

    def __enter__(self) -> None:
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("w")
        os.set_inheritable(self.file.fileno(), True)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is making the environment; waiting for it ...")
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        self.file.close()


def run_tests(arguments: "list[str]") -> None:
    """Replace this process by pytest, in the project's folder."""
    if importlib.util.find_spec("pytest") is None:
        stop("pytest is not installed here; install requirements/dev.txt to run the tests.")
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


def say(text: str) -> None:
    print(f"coalmine: {text}", file=sys.stderr, flush=True)


def stop(text: str) -> None:
    say(text)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
