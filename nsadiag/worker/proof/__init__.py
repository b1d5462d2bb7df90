"""One process of a proof: the first steps of its optimizers are written down, and then it ends."""
