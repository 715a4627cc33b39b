"""From rows to samples: what had arrived of one wave's roster by one cutoff.

Few statements, and never one more for more machines: telemetry is chosen by a sub-select on the
roster. Rows become columns at once. Machines and units are ordered by name, so nothing in the
order tells the arms apart.
"""

from rollouts.aggregation.before import install_baseline, install_baseline_of
from rollouts.aggregation.samples import design_of, samples_for

__all__ = ["design_of", "install_baseline", "install_baseline_of", "samples_for"]
