"""One pattern of source a file: what single rules and candidates look for."""
