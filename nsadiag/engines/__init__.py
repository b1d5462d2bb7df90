"""Where agents start: on this machine for now."""
