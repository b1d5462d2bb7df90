"""One per node: starts a job, watches it from outside, takes evidence, ends what is stuck."""
