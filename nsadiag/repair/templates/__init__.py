"""Templates of repairs, one a file, each with an example that a test runs."""
