"""Invariants of the first steps: the operations of all ranks side by side, and what of their tensors is equal on all of them.

The ranks of a job are each other's reference. What is equal at first, and moves, and is equal again, is meant to be kept equal;
what differs from the start is each rank's own. An equality that was not seen to hold is never reported as broken.
"""
