# how: shell
# unordered
# line: for p in python2 python2.7 python3.6 python3.7 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 /usr/bin/python3; do command -v $p > /dev/null && $p -c 'import sys; sys.stdout.write("%s %s\n" % (sys.version.split()[0], [p for p in sys.path if "nsadiag" in p]))' 2>&1 | grep -v pyenv; RANK=0 WORLD_SIZE=1 $p -c 'import sys; sys.stdout.write("hello\n")' 2>&1 | grep -v pyenv; done
