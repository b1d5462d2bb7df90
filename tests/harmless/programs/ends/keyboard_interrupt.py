# how: rank
# alone
raise KeyboardInterrupt
