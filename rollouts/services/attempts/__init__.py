"""One try on one machine: started, taken on step by step, read back, tried again."""
