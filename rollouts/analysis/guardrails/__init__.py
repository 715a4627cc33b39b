"""Guardrails prepared for a run of looks: one module per way of judging."""
