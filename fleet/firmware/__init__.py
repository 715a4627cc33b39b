"""Versions and what follows from them: order, drift, reach, recorded changes. Pure."""
