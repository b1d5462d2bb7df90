# how: rank
# exits: 5
raise SystemExit(5)
