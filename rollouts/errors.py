"""Domain errors of rollouts; `config/api.py` maps each to a status and a stable code."""


class RolloutError(Exception):
    """Base of the rollouts' domain errors; messages state the value seen."""


class StaleRollout(RolloutError):
    """The rollout, wave or attempt changed since it was read; another worker won."""


class IllegalTransition(RolloutError):
    """The move is not in the table of the rollout, the wave or the attempt."""


class PlanRefused(RolloutError):
    """The plan cannot be carried out; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class OrderRefused(RolloutError):
    """The order does not fit what stands now; `reasons` lists everything against it at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class PlanChanged(RolloutError):
    """What was seen is no longer what would be done; `reasons` names the difference."""

    def __init__(self, message: str, reasons: list[str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or []


class ApprovalExpired(RolloutError):
    """The approval is older than the plan lets it be; it has to be asked for anew."""


class UnknownSignature(RolloutError):
    """No fault signature of the catalogue is called so."""


class MixedUnit(RolloutError):
    """The machines of one placement unit differ in arm, stratum or block."""


class SamePerson(RolloutError):
    """Author and approver, or first and second person, are the same."""


class NotHalted(RolloutError):
    """Only a halted rollout can be overridden."""


class PolicyRefused(RolloutError):
    """A policy or plan document is wrong; `reasons` lists everything at once."""

    def __init__(self, reasons: list[str], *, source: str = "policy") -> None:
        super().__init__("\n".join(f"{source}: {reason}" for reason in reasons))
        self.source = source
        self.reasons = reasons


class CaseRefused(RolloutError):
    """A recorded case cannot be read; the message names file, line, column and value."""


class FixRefused(RolloutError):
    """It cannot be asked whether this fix worked: what was done, or when, is not said well."""


class PackageRefused(RolloutError):
    """No package can be made for this supplier case."""
