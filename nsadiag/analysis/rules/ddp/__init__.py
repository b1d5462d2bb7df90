"""Misuse of DDP, as its reducer detects it."""
