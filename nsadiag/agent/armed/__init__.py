"""Jobs that record without having been asked (`nsadiag arm`): followed from beside, and looked at once they are silent."""
