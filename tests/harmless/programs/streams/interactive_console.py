# how: shell
# slow
# alone
# stdin: print(6 * 7)
# line: python -i -q 2>/dev/null
