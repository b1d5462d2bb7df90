"""The course of each rule on a run directory: as a document, and as lines to read."""
