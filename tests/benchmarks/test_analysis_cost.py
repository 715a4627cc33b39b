"""The limits on the cost of a look, and that the measured look is one of six metrics."""

from dataclasses import replace

from benchmarks.analysis_cost import METRICS, Cost, checks_of, policy, wave

FINE = Cost(
    machines=1_280,
    resamples=19_999,
    columns=20,
    labels_seconds=1.0,
    first_look_seconds=0.5,
    look_seconds=0.5,
    look_core_seconds=0.5,
    product_seconds=0.5,
    bare_product_seconds=0.2,
    bare_product_core_seconds=0.2,
    peak_bytes=200 * 2**20,
)


def failed(*costs):
    return [check.name for check in checks_of(costs) if not check.is_met]


def test_a_look_within_its_limits_passes():
    assert failed(FINE) == []


def test_a_slow_look_fails_by_its_limit_and_beside_the_product():
    slow = replace(FINE, look_seconds=1.6, look_core_seconds=1.6)

    assert failed(slow) == [
        "1280 machines: one look",
        "1280 machines: a later look over the bare product",
    ]


def test_too_much_memory_fails():
    assert failed(replace(FINE, peak_bytes=2 * 2**30)) == ["1280 machines: memory"]


def test_cost_that_grows_faster_than_machines_fails():
    large = replace(FINE, machines=12_800, look_core_seconds=5.5, bare_product_core_seconds=2.0)

    assert failed(FINE, large) == ["growth from 1280 to 12800 machines"]


def test_the_measured_policy_has_six_metrics_and_the_whole_number_of_resamples():
    rules = policy()

    assert sorted(g.metric.value for g in rules.guardrails) == sorted(METRICS)
    assert rules.resamples == 19_999


def test_the_measured_wave_has_one_canary_in_five():
    drawn = wave(200)

    assert int(drawn.is_canary.sum()) == 40
    assert drawn.samples.recoveries is not None
