"""The way back of a broken machine: repair steps, gates, recurrence, evidence. Pure."""
