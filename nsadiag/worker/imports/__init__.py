"""The import system of a process of the job: told of modules that come, and left as it would be without us."""
