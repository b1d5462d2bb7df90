"""Replicas that are no longer one model."""
