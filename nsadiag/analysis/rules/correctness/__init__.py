"""Wrong results without an error."""
