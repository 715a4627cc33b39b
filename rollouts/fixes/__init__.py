"""Did the fix work? Questions from rows or from a recorded folder, answered by the analysis."""

from rollouts.fixes.asked import Answered, Asked, Told, answered
from rollouts.fixes.recorded import Arms, read_history

__all__ = ["Answered", "Arms", "Asked", "Told", "answered", "read_history"]
