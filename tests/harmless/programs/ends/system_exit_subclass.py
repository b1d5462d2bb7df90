# how: rank
class Done(SystemExit):
    pass


raise Done(9)
