"""The commands behind the parsed command line, which put the packages together."""
