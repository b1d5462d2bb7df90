"""`nsadiag fix`: a repair of the failure in a run directory, with its proof."""
