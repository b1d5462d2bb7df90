"""Flight-recorder dumps of many ranks, each read into columns in a process of its own."""
