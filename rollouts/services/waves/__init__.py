"""A wave, from its roster to its end, and what is done around it."""
