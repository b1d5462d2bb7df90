"""Snapshots of jobs that nsadiag did not start."""
