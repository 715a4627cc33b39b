import json
from fractions import Fraction

import numpy as np
import pytest

from rollouts.analysis.errors import InvalidLevel, InvalidState
from rollouts.analysis.sequential import CrossingState, cross
from rollouts.analysis.wave import GuardrailState, Look, WaveState


def test_a_state_survives_json():
    crossed = cross(CrossingState.initial(40), np.arange(40)[::-1], level=Fraction(1, 10))
    state = WaveState(
        guardrails={
            "faults": GuardrailState(
                halt=crossed, halt_look=3, levels=("1/160",), fractions=(0.25,), pending=0.5
            )
        },
        as_of_seconds=3600.0,
        reached=0.25,
        heard_seconds={"reports": np.array([1.5, -np.inf])},
    )

    again = WaveState.from_dict(json.loads(json.dumps(state.to_dict())))

    assert again.to_dict() == state.to_dict()
    assert again.of("faults").halt.alive.tolist() == crossed.alive.tolist()
    assert again.heard_seconds["reports"].tolist() == [1.5, -np.inf]


def test_a_state_of_another_version_is_refused():
    with pytest.raises(InvalidState, match="version 1: got 2"):
        WaveState.from_dict({"version": 2})


def test_an_effect_that_crosses_after_it_was_shown_tolerable_is_tolerated():
    assert GuardrailState(halt_look=5, shown_look=4).is_tolerated
    assert not GuardrailState(halt_look=4, shown_look=5).is_tolerated
    assert not GuardrailState(halt_look=4).is_tolerated


@pytest.mark.parametrize("elapsed", [-0.1, 1.1, float("nan")])
def test_elapsed_is_a_share(elapsed):
    with pytest.raises(InvalidLevel, match="elapsed"):
        Look(1, 0.0, elapsed)
