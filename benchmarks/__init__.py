"""What the analysis costs and what it decides, beside its peers and the limits."""
