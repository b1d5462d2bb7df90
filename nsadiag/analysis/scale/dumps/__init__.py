"""Flight-recorder dumps of very many ranks: matched as a whole, cut down to those that matter."""
