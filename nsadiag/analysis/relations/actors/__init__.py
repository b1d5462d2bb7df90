"""Jobs of Ray's: the wait-for graph over calls, actors and resources."""
