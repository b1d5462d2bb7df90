"""How each rule went on a run directory: as a document, and as lines to read."""
