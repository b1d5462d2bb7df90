"""Paths that a person names, as files to read: folders, archives, compressed files, standard input; and their text as lines."""
