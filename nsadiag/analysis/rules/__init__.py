"""Rules, one a file: a check from a case to findings, each with the files that show it."""
