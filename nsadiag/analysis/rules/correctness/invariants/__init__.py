"""Equalities and orders that a job is expected to keep, by the operations of its first steps: the first that it does not keep."""
