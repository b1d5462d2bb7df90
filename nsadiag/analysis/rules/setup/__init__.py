"""Jobs that never got as far as training."""
