"""Results that are wrong, without an error."""
