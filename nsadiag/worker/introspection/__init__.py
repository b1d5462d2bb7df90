"""Questions that a rank answers while it runs, asked over torch's worker server."""
