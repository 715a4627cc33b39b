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


class RetryUsed(IllegalTransition):
    """The checks of one repair are tried again once; after that a person decides."""


class MachineHeld(FleetError):
    """Somebody else has the machine in hand, or it is another team's."""


class HandOverRefused(FleetError):
    """A machine cannot be handed to them."""


class TakeOutRefused(FleetError):
    """The machine is out of work already, or something on it has to end first."""


class BreakGlassRefused(FleetError):
    """A machine cannot be put to work without its gate in this way."""


class GateMissing(FleetError):
    """A move into service carries no gate record, or one that does not hold."""


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


class IllegalRepairStep(FleetError):
    """The step is not in the repair's table, or the machine is not where the step needs it."""


class StaleRepair(FleetError):
    """The repair changed since it was read; somebody else was faster."""


class RepairRefused(FleetError):
    """A repair or its end cannot be taken; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class EvidenceRefused(FleetError):
    """A file cannot be kept as evidence: its name, its type or its digest."""


class EvidenceTooLarge(EvidenceRefused):
    """A file is larger than is kept."""


class EvidenceMissing(FleetError):
    """A file of which a record tells is not in the store."""


class AddressRefused(FleetError):
    """An address is not one that may be called from here."""


class SignatureRefused(FleetError):
    """A message carries no signature that holds, or is too old."""


class MessageConflict(FleetError):
    """A message's identifier was used before, for another message."""


class TicketRefused(FleetError):
    """A ticket system says something of a repair that cannot be; nothing of it was done."""


class IllegalGateMove(FleetError):
    """The move is not in the gate's table, or not possible as its checks stand."""


class StaleGate(FleetError):
    """The gate changed since it was read; somebody else was faster."""


class GatePlanRefused(FleetError):
    """A gate plan cannot be taken; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class CheckRefused(FleetError):
    """A result of a check cannot be taken; nothing of it was kept."""


class CheckClaimed(FleetError):
    """Somebody else is at the check, or the claim that is shown has run out."""


class ResultConflict(FleetError):
    """A result's key was used before, for another result."""


class SameHands(FleetError):
    """Who reviews a gate repaired the machine or ran its checks, or may not review this plan."""


class NoPartner(FleetError):
    """No machine of the fleet can be lent to a check."""


class ClaimRefused(FleetError):
    """A claim is none of its kind, or another machine's; `reasons` lists everything at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class SwapRefused(FleetError):
    """Parts cannot be swapped so; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class IncidentRefused(FleetError):
    """What is said of an incident names something that is not so; nothing of it was kept."""


class IncidentClosed(FleetError):
    """The incident is over, or part of another one; it is not diagnosed any more."""


class ImpactRefused(FleetError):
    """An impact on a job cannot be so; `reasons` lists everything that is wrong at once."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class ImpactConflict(FleetError):
    """An impact's key was used before, for another one."""
