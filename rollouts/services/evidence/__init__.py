"""What was seen, before and during a comparison, and what was said of it."""
