"""What machines report, before it is a row: counters, bursts, daily digests. Pure."""
