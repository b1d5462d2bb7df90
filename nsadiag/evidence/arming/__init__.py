"""Jobs that are recorded without having been asked (`nsadiag arm`): where they record, who watches them, and by which settings."""
