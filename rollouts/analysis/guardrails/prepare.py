"""Which metric is judged by which track."""

from collections.abc import Callable, Mapping

from rollouts.analysis.evidence import Track
from rollouts.analysis.guardrails.faults import FaultTrack
from rollouts.analysis.guardrails.installs import InstallTrack
from rollouts.analysis.guardrails.interruptions import RecoveryTrack, SeverePathTrack
from rollouts.analysis.guardrails.per_unit import (
    prepare_lost_work,
    prepare_novel,
    prepare_telemetry,
)
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.guardrails.throughput import ThroughputTrack
from rollouts.analysis.policy import Guardrail, Metric

TRACKS: Mapping[Metric, Callable[[Guardrail, Run], Track]] = {
    Metric.FAULTS: FaultTrack.prepare,
    Metric.INSTALL: InstallTrack.prepare,
    Metric.LOST_WORK: prepare_lost_work,
    Metric.NOVEL_SIGNATURES: prepare_novel,
    Metric.RECOVERY_TIME: RecoveryTrack.prepare,
    Metric.SEVERE_PATH: SeverePathTrack.prepare,
    Metric.TELEMETRY: prepare_telemetry,
    Metric.THROUGHPUT: ThroughputTrack.prepare,
}


def track(guardrail: Guardrail, run: Run) -> Track:
    return TRACKS[guardrail.metric](guardrail, run)
