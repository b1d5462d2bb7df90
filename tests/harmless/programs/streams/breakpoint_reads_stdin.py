# how: python
# alone
# stdin: c
x = 3
breakpoint()
print("continued", x)
