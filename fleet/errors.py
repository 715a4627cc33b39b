"""Domain errors of the fleet; `config/api.py` maps each to a status and a stable code."""


class FleetError(Exception):
    """Base of the fleet's domain errors; messages state the value seen."""


class AppendOnly(FleetError):
    """Somebody tried to change or delete a record."""


class StaleMachine(FleetError):
    """The machine changed state since it was read; another worker won."""


class IllegalTransition(FleetError):
    """The move is not in the machine's table."""


class MachineBusy(FleetError):
    """Something is under way on the machine that has to come to its end first."""


class CordonStands(FleetError):
    """A cordon of somebody else stands, or the cordon is not the caller's to lift."""


class GateMissing(FleetError):
    """A move into service carries no gate record."""


class BundleFrozen(FleetError):
    """An approved or withdrawn bundle cannot change."""


class BundleNotReady(FleetError):
    """The bundle has no images or no platforms, or is not in the state that the step needs."""


class ClockError(FleetError):
    """The clock was asked to go backwards, or to move in the wrong mode."""


class SelfApproval(FleetError):
    """Author and approver of a bundle are the same person."""


class AdapterFailed(FleetError):
    """An adapter's system does not answer, told by an error of its client that is no OSError."""


class RegistrationRefused(FleetError):
    """Machines cannot be registered; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class ChangeRefused(FleetError):
    """A report of a change cannot be taken; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class ImportRefused(FleetError):
    """A recorded history cannot be taken in; `reasons` lists what is wrong, nothing was read."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class SelectorError(FleetError):
    """A selector is empty, malformed or names something unknown; it selects nothing."""


class BatchConflict(FleetError):
    """A batch key was used before, for other content."""
