"""Engines, which start agents: on this machine, on static nodes, through Slurm."""
