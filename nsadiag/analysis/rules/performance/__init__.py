"""Steps that take too long."""
