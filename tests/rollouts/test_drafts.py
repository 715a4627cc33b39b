"""A draft from a file: what it may say, and how all that is wrong in it is said at once."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from rollouts import services
from rollouts.drafts import read_draft
from rollouts.models import Policy, Preview, Rollout
from tests.factories import NOW, make_bundle, make_image, make_machines, make_user
from tests.rollouts.plans import NEW, OLD, document

pytestmark = pytest.mark.django_db


def a_policy(**said: Any) -> Policy:
    return services.save_policy(name="house", document=said, author=None, now=NOW)


def a_file(folder: Path, **said: Any) -> Path:
    """A draft's file with a seed; what is None is left out."""
    whole = {
        "name": "from a file",
        "bundle": "bmc 2",
        "selector": "platform=dgx-h100",
        "plan": document(),
        "seed": 7,
        **said,
    }
    path = folder / "draft.json"
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    return path


def a_fleet() -> None:
    """Forty machines, and the bundle that the file names; the image to go back to is kept."""
    make_machines(40, versions={"bmc": OLD})
    make_image("bmc", OLD)
    make_bundle(name="bmc", version="2", images=[make_image("bmc", NEW)])


def shown(path: Path, *options: str) -> str:
    out = StringIO()
    call_command("preview", str(path), *options, stdout=out)
    return out.getvalue()


def test_a_file_is_previewed_under_the_digest_that_its_draft_will_have_and_nothing_is_kept(
    tmp_path: Path,
):
    a_fleet()
    path = a_file(tmp_path)

    seen = json.loads(shown(path, "--json"))

    assert (seen["seed"], seen["is_kept"], seen["machines"]) == (7, False, 40)
    assert not Rollout.objects.exists()
    assert not Preview.objects.exists()
    rollout = services.create_draft(**read_draft(path), author=make_user(), now=NOW)
    assert services.preview(rollout, now=NOW).digest == seen["digest"]
    assert services.submit(rollout, actor=rollout.author, now=NOW, digest=seen["digest"])


def test_a_file_without_a_seed_is_told_the_one_that_was_drawn(tmp_path: Path):
    a_fleet()
    path = a_file(tmp_path, seed=None)

    said = shown(path)

    seed = re.search(r"nothing is kept; .* with seed (\d+) has this digest", said)
    assert seed is not None, said
    again = json.loads(shown(a_file(tmp_path, seed=int(seed[1])), "--json"))
    assert said.startswith(f"digest {again['digest']}\n")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", 'name = "x"\nbundle = "bmc 2"\nselector = "name"\npolicy = "house v1"\n'),
        (".yaml", "name: x\nbundle: bmc 2\nselector: name\npolicy: house\n"),
    ],
)
def test_a_file_may_be_toml_or_yaml_and_name_a_policy(tmp_path: Path, suffix: str, text: str):
    make_machines(1)
    policy = a_policy(burn_in_hours=5)
    bundle = make_bundle(name="bmc", version="2")
    path = tmp_path / f"draft{suffix}"
    path.write_text(text)

    found = read_draft(path)

    assert (found["policy"], found["bundle"], found["document"]) == (policy, bundle, {})


def test_everything_that_is_wrong_in_a_file_is_said_at_once(tmp_path: Path):
    make_machines(1)
    path = a_file(
        tmp_path,
        name=None,
        bundle="bmc 3",
        selector="rakc=r1",
        plan={"alpha": 2, "mode": "observe"},
        policy="none",
        mode="all",
        seed=-1,
        waves=[],
    )

    with pytest.raises(CommandError) as refused:
        shown(path)

    said = str(refused.value)
    for part in (
        "name: missing",
        "bundle: 'bmc 3' is not known; known: none",
        "selector: 'rakc' is neither",
        "plan: mode: said beside the plan",
        "policy: 'none' is not known",
        "mode: 'all' is not accepted; accepted: observe, advise, automatic",
        "seed: -1 is not a whole number",
        "waves: unknown key; it belongs into `plan`",
    ):
        assert part in said, said


def test_every_breach_of_a_files_plan_is_named(tmp_path: Path):
    a_fleet()

    with pytest.raises(CommandError) as refused:
        shown(a_file(tmp_path, plan={"alpha": 2, "burn_in_huors": 1}))

    assert "plan: alpha: 2 is" in str(refused.value)
    assert "plan: burn_in_huors: unknown key; did you mean 'burn_in_hours'" in str(refused.value)


def test_a_file_of_a_name_that_is_taken_points_to_the_rollout(tmp_path: Path):
    a_fleet()
    path = a_file(tmp_path)
    services.create_draft(**read_draft(path), author=make_user(), now=NOW)

    with pytest.raises(CommandError, match="preview it by its name"):
        shown(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(CommandError, match=r"gone\.yaml: cannot be read"):
        shown(tmp_path / "gone.yaml")
