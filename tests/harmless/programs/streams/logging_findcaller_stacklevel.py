# how: rank
import logging

logging.basicConfig(format="%(funcName)s:%(lineno)d %(message)s")


def inner():
    logging.warning("one")
    logging.getLogger("x").warning("two", stacklevel=2)


def outer():
    inner()


outer()
