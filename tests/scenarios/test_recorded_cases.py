"""Real recordings with known answers; they are not part of the repository.

The known figures are those of each recording's own README, computed by others with other code.
"""

import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from rollouts import backtest
from rollouts.analysis.stragglers import shifts
from rollouts.cases import read_case
from rollouts.cases.steps import read_steps
from rollouts.policies import load_policy
from tests.recordings import ROOT, recording


@cache
def replayed(name: str, *, is_swapped: bool = False) -> tuple[dict[str, Any], float]:
    """The report with the documented policy, and the processor seconds of reading and replaying.

    Processor seconds of all threads, so that what else the machine does is no matter.
    """
    document = load_policy(ROOT / "docs" / "cases" / f"{name}.json")
    if is_swapped:
        arms = document["arms"]
        document["arms"] = {"canary": arms["control"], "control": arms["canary"]}
    begun = time.process_time()
    result = backtest.replay(read_case(recording(name), document))
    return backtest.as_document(result), time.process_time() - begun


def guardrails(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in report["guardrails"]}


@pytest.fixture(
    params=["titan_gpu_a", "lanl_nodes_a", "h100_throughput_1gpu", "h100_throughput_aa"]
)
def any_report(request: pytest.FixtureRequest) -> dict[str, Any]:
    return replayed(request.param)[0]


def test_a_recorded_case_is_advisory_and_says_why(any_report):
    assert any_report["advisory"] is True
    assert "assignment was not drawn by the engine" in any_report["advisory_because"]


# --- Titan: a new batch of GPUs ------------------------------------------------------------


def test_the_new_batch_of_gpus_is_widened_by_the_first_checkpoint():
    report, _ = replayed("titan_gpu_a")

    assert report["decision"] == "widen"
    assert report["look"] <= 18
    assert {g["verdict"] for g in report["guardrails"]} == {"not_worse"}


def test_the_new_batch_of_gpus_has_a_twenty_fifth_of_the_double_bit_errors():
    dbe = guardrails(replayed("titan_gpu_a")[0])["faults:DBE"]

    assert dbe["estimate"] == pytest.approx(0.0400, abs=0.0005)
    assert dbe["fixed_look"]["low"] == pytest.approx(0.02997, abs=0.0005)
    assert dbe["fixed_look"]["high"] == pytest.approx(0.05348, abs=0.0005)
    assert (dbe["canary"]["events"], dbe["canary"]["machines"]) == (56, 5684)
    assert (dbe["control"]["events"], dbe["control"]["machines"]) == (1244, 9472)  # distinct rows
    assert dbe["canary"]["exposure_hours"] == pytest.approx(107_439_715, rel=1e-6)


def test_the_new_batch_of_gpus_has_a_thirtieth_of_the_off_the_bus_errors():
    otb = guardrails(replayed("titan_gpu_a")[0])["faults:OTB"]

    assert otb["estimate"] == pytest.approx(0.0314, abs=0.0005)
    assert otb["fixed_look"]["low"] == pytest.approx(0.01814, abs=0.0005)
    assert otb["fixed_look"]["high"] == pytest.approx(0.05481, abs=0.0005)


def test_the_old_batch_as_canary_is_halted_within_ten_looks():
    report, _ = replayed("titan_gpu_a", is_swapped=True)

    assert report["decision"] == "halt"
    assert report["reason_code"] == "harmful"
    assert report["look"] <= 10
    assert guardrails(report)["faults:DBE"]["verdict"] == "harmful"


def test_fifteen_thousand_machines_and_72_looks_replay_in_half_a_minute():
    _, seconds = replayed("titan_gpu_a")

    assert seconds < 30


# --- LANL: two clusters of one type --------------------------------------------------------


def test_two_clusters_of_one_type_show_no_harm_in_faults_at_any_look():
    report, _ = replayed("lanl_nodes_a")

    assert report["decision"] != "halt"
    assert all(look["decision"] != "halt" for look in report["history"])
    assert all(look["guardrails"]["faults"] != "harmful" for look in report["history"])


def test_machines_as_units_do_not_prove_what_failures_as_units_seem_to():
    faults = guardrails(replayed("lanl_nodes_a")[0])["faults"]

    assert faults["estimate"] == pytest.approx(0.9128, abs=0.0005)
    assert faults["fixed_look"]["low"] == pytest.approx(0.8099, abs=0.002)
    assert faults["fixed_look"]["high"] == pytest.approx(1.0288, abs=0.002)
    assert (faults["canary"]["events"], faults["control"]["events"]) == (2985, 3270)


def test_a_report_only_guardrail_is_shown_and_never_halts():
    report, _ = replayed("lanl_nodes_a")

    # log(min(recovery, 8 h)) less its path's median, machines as clusters: by a separate script.
    recovery = guardrails(report)["recovery_time"]
    assert recovery["estimate"] == pytest.approx(1.1135, abs=0.001)
    assert recovery["fixed_look"]["low"] == pytest.approx(1.0016, abs=0.003)
    assert recovery["fixed_look"]["high"] == pytest.approx(1.2380, abs=0.003)
    assert {look["guardrails"]["recovery_time"] for look in report["history"]} <= {
        "no_data",
        "inconclusive",
        "not_worse",
    }


def test_the_whole_window_proves_no_longer_recovery_than_the_margin():
    recovery = guardrails(replayed("lanl_nodes_a")[0])["recovery_time"]

    assert recovery["verdict"] == "not_worse"
    assert recovery["high"] < 1.5


# --- H100: twenty hosts, fourteen workloads ------------------------------------------------


def test_the_slower_launch_is_halted_for_throughput():
    report, _ = replayed("h100_throughput_1gpu")

    assert report["decision"] == "halt"
    assert guardrails(report)["throughput"]["verdict"] == "harmful"


def test_throughput_has_equal_weight_per_workload_and_machines_as_units():
    throughput = guardrails(replayed("h100_throughput_1gpu")[0])["throughput"]

    assert throughput["estimate"] == pytest.approx(0.9806, abs=0.0003)
    assert throughput["fixed_look"]["low"] == pytest.approx(0.9791, abs=0.0003)
    assert throughput["fixed_look"]["high"] == pytest.approx(0.9821, abs=0.0003)
    assert throughput["canary"]["machines"] == throughput["control"]["machines"] == 10


def test_the_workloads_that_suffer_are_named():
    reason = guardrails(replayed("h100_throughput_1gpu")[0])["throughput"]["reason"]

    assert "tacotron2-fp32 0.918, tacotron2-fp16 0.934" in reason


def test_equal_machines_split_at_random_are_not_flagged():
    report, _ = replayed("h100_throughput_aa")

    assert report["decision"] != "halt"
    assert all(look["guardrails"]["throughput"] != "harmful" for look in report["history"])
    throughput = guardrails(report)["throughput"]
    assert throughput["fixed_look"]["low"] < 1 < throughput["fixed_look"]["high"]


@pytest.mark.parametrize("name", ["h100_throughput_1gpu", "h100_throughput_aa"])
def test_a_recording_of_an_hour_is_judged_on_what_it_has_and_says_so(name):
    report, _ = replayed(name)

    assert any("judged on what it has" in reason for reason in report["advisory_because"])


# --- Alibaba: one slow worker of a training job ----------------------------------------------


def test_the_worker_that_slowed_down_in_mid_run_is_found_with_the_step():
    given = read_steps(
        recording("alibaba_straggler_job1") / "observations.csv",
        worker="worker",
        step="iteration",
        time="batch_time_norm",
    )

    worst, *others = shifts(given.seconds, workers=given.workers, rng=np.random.default_rng(1))

    assert given.seconds.shape == (300, 10)
    assert (worst.worker, worst.step) == ("worker-06", 181)
    assert worst.before == pytest.approx(0.988, abs=0.0005)
    assert worst.after == pytest.approx(1.051, abs=0.0005)
    assert worst.ratio == pytest.approx(1.0634757, abs=1e-6)
    assert {s.worker: s.step for s in others}["worker-08"] == 55
    assert {s.worker: s.ratio for s in others}["worker-08"] == pytest.approx(1.0610774, abs=1e-6)


def test_the_slow_worker_was_slow_for_fourteen_iterations():
    given = read_steps(
        recording("alibaba_straggler_job1") / "observations.csv",
        worker="worker",
        step="iteration",
        time="batch_time_norm",
    )

    worst, *others = shifts(given.seconds, workers=given.workers, rng=np.random.default_rng(1))

    # In the file iteration 182 to 195: 1.74, 1.74, 1.93, ... up to 2.35 times the median worker.
    assert (worst.spell.first, worst.spell.last) == (181, 194)
    assert worst.spell.ratio == pytest.approx(1.503, abs=0.001)
    assert worst.spell.ratio > 1.25 * max(s.spell.ratio for s in others if s.spell)
