# how: rank
import multiprocessing as mp

if __name__ == "__main__":
    mp.log_to_stderr("INFO").handlers[0].setFormatter(
        __import__("logging").Formatter("%(levelname)s %(message)s")
    )
    process = mp.get_context("fork").Process(target=print, args=("child",), name="one")
    process.start()
    process.join()
