# how: rank
# exits: 4
exit(4)
