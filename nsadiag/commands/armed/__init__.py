"""`nsadiag arm`, `nsadiag disarm`, and the processes that watch what is armed."""
