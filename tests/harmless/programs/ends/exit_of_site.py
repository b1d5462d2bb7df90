# how: rank
exit(4)
