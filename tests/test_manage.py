"""The bootstrap: what it asks of the interpreter, and when it makes the environment anew."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import manage

ROOT = Path(__file__).resolve().parent.parent


def make_environment(folder: Path, *, stamp: str | None) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    if stamp is not None:
        (folder / manage.STAMP).write_text(stamp + "\n")
    return folder


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (4, 0)])
def test_a_recent_interpreter_is_accepted(version: tuple[int, int]):
    assert manage.version_problem(version) is None


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 10)])
def test_an_old_interpreter_is_told_what_is_needed(version: tuple[int, int]):
    problem = manage.version_problem(version)

    assert problem is not None
    assert "3.11 or newer" in problem
    assert "{}.{}".format(*version) in problem


def test_the_bootstrap_parses_on_interpreters_that_it_refuses():
    source = (ROOT / "manage.py").read_text()

    ast.parse(source, feature_version=(3, 7))


def test_the_bootstrap_imports_nothing_but_the_standard_library_at_its_top():
    tree = ast.parse((ROOT / "manage.py").read_text())
    modules = {
        name.split(".")[0]
        for node in tree.body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert modules <= sys.stdlib_module_names


def test_an_environment_with_the_lock_s_stamp_is_complete(tmp_path: Path):
    folder = make_environment(tmp_path / "venv", stamp="abc")

    assert manage.is_complete(folder, digest="abc")


def test_an_environment_without_a_stamp_is_half_made(tmp_path: Path):
    folder = make_environment(tmp_path / "venv", stamp=None)

    assert not manage.is_complete(folder, digest="abc")


def test_an_environment_of_another_lock_is_out_of_date(tmp_path: Path):
    folder = make_environment(tmp_path / "venv", stamp="abc")

    assert not manage.is_complete(folder, digest="def")


def test_an_environment_whose_interpreter_is_gone_is_not_complete(tmp_path: Path):
    folder = make_environment(tmp_path / "venv", stamp="abc")
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to(tmp_path / "nowhere")

    assert not manage.is_complete(folder, digest="abc")


def test_a_half_made_environment_may_be_cleared(tmp_path: Path):
    assert manage.may_clear(tmp_path / "absent")
    assert manage.may_clear(make_environment(tmp_path / "venv", stamp=None))

    killed_early = tmp_path / "early"
    (killed_early / "lib").mkdir(parents=True)
    assert manage.may_clear(killed_early)


def test_a_folder_with_something_else_is_never_cleared(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(SystemExit) as stopped:
        manage.make(tmp_path, digest="abc")

    assert stopped.value.code == 2
    assert (tmp_path / "thesis.tex").exists()


def test_a_missing_venv_module_is_answered_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(manage.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SystemExit) as stopped:
        manage.make(tmp_path / "venv", digest="abc")

    assert stopped.value.code == 2
    assert "apt install python3-venv" in capsys.readouterr().err


def test_the_first_run_goes_on_in_the_environment_that_stands_ready(tmp_path: Path):
    # An interpreter without site-packages stands for a fresh machine's; the
    # environment's "python" only reports how it was called.
    folder = make_environment(tmp_path / "venv", stamp=manage.lock_digest(manage.LOCK))
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").write_text('#!/bin/sh\necho "entered with $*"\n')
    (folder / "bin" / "python").chmod(0o755)

    done = subprocess.run(
        [sys._base_executable, "-S", str(ROOT / "manage.py"), "demo", "--fresh"],
        env={"PATH": os.environ["PATH"], "COALMINE_VENV": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.stdout == f"entered with {ROOT / 'manage.py'} demo --fresh\n", done.stderr


def test_both_locks_carry_hashes_and_no_addresses():
    for name in ("runtime.txt", "dev.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
