"""Failures of a rank: exceptions and fatal signals, written down before the process is gone."""
