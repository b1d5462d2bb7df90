"""The names of the probes: the command line checks them without importing torch."""

PROBE_NAMES = (
    "modules",
    "gradients",
    "backward",
    "recompute",
    "optimizer",
    "replicas",
    "collectives",
    "ddp_buckets",
    "fsdp_units",
    "grad_sync",
    "data",
    "io",
    "memory",
    "scaler",
    "settings",
    "handlers",
)
