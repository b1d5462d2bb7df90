# how: rank -bb
print("x")
