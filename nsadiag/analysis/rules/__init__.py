"""One rule a file: a check from a cell's evidence to findings, each pointing at a file that anyone can open."""
