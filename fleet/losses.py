"""Reads: what interruptions cost."""
