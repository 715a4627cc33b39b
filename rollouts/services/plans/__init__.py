"""A plan until it is approved: who, in what order, at what cost, signed by whom."""
