"""Attention as layers of a model: projections, positions, caches, around the operation of `nsa.attention`."""
