"""From files to plain values: a run directory, how ranks ended, the source as it was."""
