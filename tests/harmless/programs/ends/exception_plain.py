# how: rank
# exits: 1
# alone
def deep(n):
    return deep(n - 1) if n else 1 / 0


deep(3)
