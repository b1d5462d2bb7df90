"""Flight-recorder dumps of very many ranks: read as columns, matched as a whole, cut down to those that matter."""
