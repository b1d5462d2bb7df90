"""Jobs that run now: `nsadiag where` and `top`."""
