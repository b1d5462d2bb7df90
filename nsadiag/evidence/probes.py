"""The names of the probes: the command line checks them without importing torch."""

PROBE_NAMES = (
    "modules",
    "gradients",
    "backward",
    "recompute",
    "optimizer",
    "replicas",
    "held",
    "evaluated",
    "given",
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
    "piling",
    "threads",
    "stops",
    "operations",
    "invariants",
    "parity",
    "paths",
)
# What is recorded of a job that nobody has asked about (`nsadiag arm`): calls and steps, and nothing for each module,
# parameter or gradient.
ARMED = (
    "optimizer",
    "collectives",
    "ddp_buckets",
    "grad_sync",
    "data",
    "io",
    "scaler",
    "settings",
    "handlers",
    "threads",
    "stops",
)
# What `light` and `full` leave out: they wait for a GPU, read every gradient, or see every turn of the user's code.
ON_REQUEST = ("invariants", "parity", "paths")
NEEDS = {
    "operations": ("backward", "optimizer", "collectives"),
    "invariants": ("gradients", "backward", "optimizer", "collectives", "operations"),
    "parity": ("backward", "optimizer"),
    "paths": ("collectives",),
    "memory": ("optimizer",),
    "settings": ("optimizer",),
    "held": ("optimizer",),
    "piling": ("optimizer",),
}


def chosen(spec: str) -> list[str]:
    """The probes that names with commas stand for; `light`, `full` and `none` are names too."""
    names: set[str] = set()
    for word in spec.split(","):
        if word in ("light", "full"):
            names.update(name for name in PROBE_NAMES if name not in ON_REQUEST)
        if word == "armed":
            names.update(ARMED)
        names.update((word, *NEEDS.get(word, ())))
    return [name for name in PROBE_NAMES if name in names]


def unknown_in(spec: str) -> list[str]:
    """Words that name no probe; what `armed` stands for is not asked for by that name."""
    return [word for word in spec.split(",") if word not in (*PROBE_NAMES, "light", "full", "none")]


def are_default(spec: str) -> bool:
    """Whether they are those that nobody has to ask for: nothing is left out of what was asked for."""
    return is_light(spec) and not any(name in ON_REQUEST for name in chosen(spec))


def is_light(spec: str) -> bool:
    """Whether probes spare the job, as they do by default."""
    words = spec.split(",")
    return not {"light", "armed"}.isdisjoint(words) and "full" not in words
