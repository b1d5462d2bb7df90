"""Replicas that have diverged, and the causes."""
