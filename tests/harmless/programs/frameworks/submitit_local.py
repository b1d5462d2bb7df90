# how: rank
# needs: submitit
# slow
import submitit

if __name__ == "__main__":
    executor = submitit.LocalExecutor(folder="jobs")
    executor.update_parameters(timeout_min=2)
    job = executor.submit(pow, 2, 5)
    print(job.result())
    __import__("shutil").rmtree("jobs")
