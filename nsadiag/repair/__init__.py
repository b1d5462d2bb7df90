"""Repairs of the user's code: candidate patches by syntax tree, and the proof that one of them needs."""
