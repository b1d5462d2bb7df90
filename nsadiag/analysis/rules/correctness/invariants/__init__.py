"""Equalities and orders of operations that a correct job keeps in its first steps, and rules for those that are broken."""
