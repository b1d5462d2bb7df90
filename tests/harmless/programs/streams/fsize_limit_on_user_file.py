# how: rank
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with open("mine", "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 1000)
    except OSError as error:
        print(error.errno, file.tell())
