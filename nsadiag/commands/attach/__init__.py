"""`nsadiag attach`: a running job is joined on this machine, or through Slurm on its nodes."""
