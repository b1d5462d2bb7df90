"""Rules for jobs of Ray's, by their wait-for graph."""
