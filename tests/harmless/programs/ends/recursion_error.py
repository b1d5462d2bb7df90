# how: rank
# exits: 1
def f(n):
    return f(n + 1)


f(0)
