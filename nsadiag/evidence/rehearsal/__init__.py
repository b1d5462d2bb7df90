"""The messages and documents of a rehearsal. Every process of a job imports this: what only ranks need is in `calls`."""

SOCKET = "NSADIAG_REHEARSAL"  # variable with the path of the coordinator's socket
# Variables with settings of the ranks.
NETWORK = "NSADIAG_REHEARSAL_NETWORK"  # "refused": no connection to other hosts
MEMORY = "NSADIAG_REHEARSAL_MEMORY"  # bytes for all ranks together
FILES = "NSADIAG_REHEARSAL_FILES"  # a directory: they write down what they do to files below it
HOLD = "NSADIAG_REHEARSAL_HOLD"  # a rank is held before an access to a file (`touches.py`)
SLEEPS = "NSADIAG_REHEARSAL_SLEEPS"  # "real": no clock is put forward
STEPS = "NSADIAG_REHEARSAL_STEPS"  # batches of an epoch
CUDA = "NSADIAG_REHEARSAL_CUDA"  # "cpu": it stands in the place of GPUs
WITNESS = (
    "NSADIAG_REHEARSAL_WITNESS"  # a number that moves their generators: they write down what they compute
)
WALK = "NSADIAG_REHEARSAL_WALK"  # "recorded": the path of their code, too, where they write down what they compute
PROOF = "NSADIAG_PROOF"  # they write down their first steps (`evidence/rehearsal/proof.py`), rehearsed or not
BESIDE = "NSADIAG_REHEARSAL_BESIDE"  # processes that follow the ranks (`beside.py`)
