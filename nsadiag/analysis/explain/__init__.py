"""The condition that explains a divergence."""
