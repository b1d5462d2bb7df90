# how: shell
# slow
# alone
# line: (sleep 1; echo late > late.txt) & wait; cat late.txt
