# how: rank -OO
assert False
print(__debug__, (lambda: 0).__doc__)
