# how: rank
raise SystemExit(5)
