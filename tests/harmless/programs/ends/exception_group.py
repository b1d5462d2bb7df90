# how: rank
# exits: 1
raise ExceptionGroup("several", [ValueError(1), TypeError("two")])
