# how: shell
# alone
# line: setsid sleep 30 > /dev/null 2>&1 < /dev/null & echo started
# by-design: parent
