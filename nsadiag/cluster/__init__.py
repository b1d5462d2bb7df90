"""Agents of several nodes: they meet, speak to each other over a side channel, and bring their evidence together."""
