"""The cleaners: one for each medium, the only way from a `str`, which others may have written, to what a renderer returns."""
