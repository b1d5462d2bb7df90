# how: rank
# exits: 9
class Done(SystemExit):
    pass


raise Done(9)
