"""A run's first steps of all ranks together, from what the probe `parity` recorded of each."""
