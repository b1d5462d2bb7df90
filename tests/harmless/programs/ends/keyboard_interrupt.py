# how: rank
# exits: 130
# alone
raise KeyboardInterrupt
