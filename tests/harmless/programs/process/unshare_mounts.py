# how: shell
# needs: root
# line: unshare -m bash -c 'mount -t tmpfs none /mnt; echo x > /mnt/f; RANK=0 WORLD_SIZE=1 python -c "print(open(\"/mnt/f\").read())"'
