"""Messages of libraries, launchers and kernels in logs: what stands before them, and what each says."""
