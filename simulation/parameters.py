"""What the virtual fleet is like: its truth, as a document that can be stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Self

#: What the writing of an image can meet, beside success.
STAGE_FAILURES = ("rejected", "failed", "busy", "stalled")
#: What an activation can meet: the image is not there, not all are, it is left again at the second
#: boot, it needs an AC cycle, the BMC or one witness is lost, nothing comes back.
ACTIVATION_FAILURES = (
    "wrong_version",
    "partial",
    "fell_back",
    "bricked",
    "needs_ac_cycle",
    "lost_bmc",
    "disputed",
)
#: Each has a share per firmware version.
FAILURES = STAGE_FAILURES + ACTIVATION_FAILURES


@dataclass(frozen=True)
class Signature:
    """One kind of fault: events per machine-day, and whether it interrupts the job."""

    name: str
    per_machine_day: float
    interrupts: bool = False
    is_shared: bool = False  # may strike many machines of a job within moments


@dataclass(frozen=True)
class Layout:
    """One platform's machines: its name, how many, and how they stand and work together."""

    platform: str
    prefix: str
    machines: int
    vendor: str = ""
    accelerators: int = 8
    per_rack: int = 8
    per_job: int = 20
    sites: tuple[str, ...] = ("north", "south")
    workloads: tuple[str, ...] = ("pre-training", "reinforcement-learning")
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobMix:
    """How jobs come to a virtual fleet, how large they are, and how long they run.

    A job takes machines of one pool, keeps them to its end, and starts anew on all of them when a
    fault throws it back to its checkpoint. What the scheduler forecasts is `overestimate` times
    the truth, as users ask for more than they need.
    """

    sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    mean_hours: float = 6.0
    overestimate: float = 1.25
    load: float = 0.8
    is_synchronous: bool = True  # a job is as fast as its slowest machine


@dataclass(frozen=True)
class Effect:
    """What one firmware version does to a machine that runs it; 1 and 0 mean nothing.

    Parameters
    ----------
    kind, version : str
        The firmware that has the effect.
    ratios : mapping of str to float
        Glob pattern of signatures to the factor on their rate.
    throughput, recovery : float
        Factors on throughput and on the time to recover.
    severe_shift : float
        Probability mass moved from the restart of a replica to the restart from a checkpoint.
    novel_signature, novel_rate
        A signature that nobody has seen, and its events per machine-day.
    silence : float
        Share of intervals that are not reported.
    failures : mapping of str to float
        Share of installs that end in each class of `FAILURES`.
    non_return : float
        Share of activation reboots that do not come back, beyond the fleet's own.
    renames_sensors : bool
        Whether the BMC shows its sensors under other names.
    """

    kind: str
    version: str
    ratios: Mapping[str, float] = field(default_factory=dict)
    throughput: float = 1.0
    recovery: float = 1.0
    severe_shift: float = 0.0
    novel_signature: str = ""
    novel_rate: float = 0.0
    silence: float = 0.0
    failures: Mapping[str, float] = field(default_factory=dict)
    non_return: float = 0.0
    renames_sensors: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.failures) - set(FAILURES))
        if unknown:
            raise ValueError(f"failures {unknown} are unknown; accepted: {', '.join(FAILURES)}")

    def ratio(self, signature: str) -> float:
        """Return the factor on the rate of a signature: the product over matching patterns."""
        product = 1.0
        for pattern, factor in self.ratios.items():
            if fnmatchcase(signature, pattern):
                product *= factor
        return product


@dataclass(frozen=True)
class Parameters:
    """The whole truth about a virtual fleet; the defaults are a fleet as the field knows it."""

    layouts: tuple[Layout, ...]
    signatures: tuple[Signature, ...]
    effects: tuple[Effect, ...] = ()
    tick_minutes: int = 120

    # Faults. Sources: gamma frailty and lemons of the decision engine's fleet model.
    frailty_shape: float = 2.0
    lemon_share: float = 0.015
    lemon_low: float = 10.0
    lemon_high: float = 50.0
    diurnal: float = 0.5
    shocks_per_job_day: float = 0.02
    shock_hit_share: float = 0.3
    shock_seconds: float = 90.0
    burst_mean: float = 1.0
    burst_seconds: float = 3600.0
    infant_ratio: float = 5.0
    infant_hours: float = 2.0
    novel_per_machine_day: float = 0.0005
    max_ratio: float = 10.0

    # Throughput, relative to nominal.
    machine_sd: float = 0.02
    slow_share: float = 0.01
    slow_low: float = 0.10
    slow_high: float = 0.30
    job_sd: float = 0.02
    job_wave_sd: float = 0.03
    job_wave_hourly: float = 0.9
    noise_sd: float = 0.03
    noise_hourly: float = 0.5
    idle_share: float = 0.002
    silence: float = 0.0

    # Recoveries: continued, replica restarted, restarted from checkpoint, job lost.
    path_shares: tuple[float, float, float, float] = (0.50, 0.33, 0.155, 0.015)
    path_minutes: tuple[float, float, float, float] = (1.0, 8.0, 30.0, 120.0)
    recovery_sigma: float = 0.7
    recovery_job_sd: float = 0.3
    recovery_cap_hours: float = 8.0
    checkpoint_minutes: float = 30.0

    #: Jobs that come and go; without them every machine keeps the job of its place for ever.
    jobs: JobMix | None = None

    # Installs. A BMC that is busy takes an image after that many minutes.
    busy_minutes: float = 15.0
    drain_minutes: float = 6.0
    staging_minutes: float = 5.0
    activation_minutes: float = 1.0
    reboot_minutes: float = 9.0
    non_return: float = 0.013
    return_by_hand: float = 0.85
    technician_minutes: float = 45.0

    def __post_init__(self) -> None:
        for effect in self.effects:
            highest = max((effect.ratio(item.name) for item in self.signatures), default=1.0)
            if highest > self.max_ratio:
                raise ValueError(
                    f"{effect.kind} {effect.version} multiplies a rate by {highest}; "
                    f"at most max_ratio={self.max_ratio} is possible"
                )
        if 24 * 60 % self.tick_minutes:
            raise ValueError(f"tick_minutes={self.tick_minutes} does not divide a day")

    @property
    def tick_seconds(self) -> float:
        return self.tick_minutes * 60.0

    @property
    def per_machine_day(self) -> float:
        """Mean events a machine-day, shocks and bursts left out."""
        return sum(item.per_machine_day for item in self.signatures)

    def as_document(self) -> dict[str, Any]:
        """Return JSON's own types, for storing."""
        return _plain(asdict(self))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `as_document` wrote."""
        known = dict(document)
        known["layouts"] = tuple(_layout(item) for item in known["layouts"])
        known["signatures"] = tuple(Signature(**item) for item in known["signatures"])
        known["effects"] = tuple(Effect(**item) for item in known.get("effects", ()))
        if jobs := known.get("jobs"):
            known["jobs"] = JobMix(**{**jobs, "sizes": tuple(jobs["sizes"])})
        for name in ("path_shares", "path_minutes"):
            if name in known:
                known[name] = tuple(known[name])
        return cls(**known)


def _layout(document: Mapping[str, Any]) -> Layout:
    lists = {name: tuple(document[name]) for name in ("sites", "workloads") if name in document}
    return Layout(**{**document, **lists})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def field_signatures(*, per_machine_day: float) -> tuple[Signature, ...]:
    """Return a usual mix of hard faults and soft signals that adds up to this rate."""
    mix = (
        Signature("host.dimm_correctable", 0.26),
        Signature("nic.link_flap", 0.22, interrupts=True, is_shared=True),
        Signature("xid.94", 0.14, interrupts=True),
        Signature("xid.63", 0.10),
        Signature("xid.74", 0.10, interrupts=True, is_shared=True),
        Signature("xid.119", 0.08, interrupts=True),
        Signature("xid.48", 0.06, interrupts=True),
        Signature("xid.79", 0.04, interrupts=True),
    )
    return tuple(
        replace(item, per_machine_day=item.per_machine_day * per_machine_day) for item in mix
    )
