"""Ranks that are blocked on something other than a peer."""
