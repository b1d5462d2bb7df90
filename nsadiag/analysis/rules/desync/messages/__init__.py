"""Messages between pipeline stages that do not match."""
