# how: rank
import logging

logging.basicConfig(format="%(levelname)s %(name)s %(funcName)s %(filename)s:%(lineno)d %(message)s")
logging.warning("careful")
try:
    int("x")
except ValueError:
    logging.exception("handled")
logging.getLogger("a.b").debug("unseen")
