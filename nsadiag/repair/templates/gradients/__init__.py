"""Gradients that have to be there on every rank."""
