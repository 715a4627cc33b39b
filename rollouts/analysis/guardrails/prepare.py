"""Which metric is judged by which track."""

from collections.abc import Callable, Mapping

from rollouts.analysis.evidence import Track
from rollouts.analysis.guardrails.faults import FaultTrack
from rollouts.analysis.guardrails.run import Run
from rollouts.analysis.guardrails.throughput import ThroughputTrack
from rollouts.analysis.policy import Guardrail, Metric

TRACKS: Mapping[Metric, Callable[[Guardrail, Run], Track]] = {
    Metric.FAULTS: FaultTrack.prepare,
    Metric.THROUGHPUT: ThroughputTrack.prepare,
}


def track(guardrail: Guardrail, run: Run) -> Track:
    return TRACKS[guardrail.metric](guardrail, run)


def unacknowledged(run: Run, cutoff: float) -> tuple[str, ...]:
    return ()
