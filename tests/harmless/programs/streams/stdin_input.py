# how: python
# alone
# stdin: a name
print("hello", input())
