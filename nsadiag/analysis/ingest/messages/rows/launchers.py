"""Ends of processes: torchrun's agent, DeepSpeed's and accelerate's launchers, Ray, shells."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import ClosedProcess, ProcessEnd, ProcessStart, UnplacedRequest

ELASTIC = "pytorch/pytorch torch/distributed/elastic/multiprocessing/api.py"
RAY = "ray-project/ray python/ray/exceptions.py"

ROWS = (
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "torchrun"},
        mark="failed (exitcode: ",
        pattern=r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,9})\)",
        example="E1129 11:57:07.249000 29471 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 8811) of "
        "binary: /opt/conda/bin/python",
        source=ELASTIC,
    ),
    MessageRow(
        makes=ClosedProcess,
        mark=" closing signal ",
        pattern=r"Sending process (?P<pid>\d{1,9}) closing signal (?P<signal>\w+)",
        example="W1129 11:57:07.249000 29471 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 8812 closing signal SIGTERM",
        source=ELASTIC,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "torchrun", "why": "cancelled"},
        mark="death signal, shutting down workers",
        pattern=r"Received (?P<signal>\w+) death signal, shutting down workers",
        example="W1129 11:57:07.249000 29471 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers",
        source="pytorch/pytorch torch/distributed/elastic/agent/server/api.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "spawn"},
        mark="process ",
        pattern=r"ProcessExitedException: process (?P<local_rank>\d{1,6}) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>-?\d+))",
        example="torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
        source="pytorch/pytorch torch/multiprocessing/spawn.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "deepspeed"},
        mark="exits with return code = ",
        pattern=r"(?:\bProcess (?P<pid>\d{1,9}))? exits with return code = (?P<code>-?\d{1,9})",
        example="[2026-11-28 10:00:00,123] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=7'] exits with "
        "return code = -9",
        source="deepspeedai/DeepSpeed deepspeed/launcher/launch.py",
    ),
    MessageRow(
        makes=ProcessStart,
        mark="spawned with command:",
        pattern=r"process (?P<pid>\d{1,9}) spawned with command: .*?--local_rank=(?P<local_rank>\d{1,6})",
        example="[2026-11-28 10:00:00,123] [INFO] [launch.py:256:main] process 44114 spawned with command: ['/usr/bin/python', '-u', 'train.py', "
        "'--local_rank=4', '--deepspeed', 'zero2.json']",
        source="deepspeedai/DeepSpeed deepspeed/launcher/launch.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "lightning"},
        mark="Child process with PID ",
        pattern=r"\[rank: (?P<local_rank>\d{1,6})\] Child process with PID (?P<pid>\d{1,9}) terminated with code (?P<code>-?\d+)",
        example="[rank: 1] Child process with PID 4711 terminated with code -9. Forcefully terminating all other processes to avoid zombies",
        source="Lightning-AI/pytorch-lightning src/lightning/fabric/strategies/launchers/subprocess_script.py",
        whole=True,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "composer"},
        mark=" with code ",
        pattern=r"Global rank (?P<rank>\d{1,9}) \(PID (?P<pid>\d{1,9})\) exited with code (?P<code>-?\d+)",
        example="ERROR:composer.cli.launcher:Global rank 3 (PID 4711) exited with code -11",
        source="mosaicml/composer composer/cli/launcher.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "composer"},
        mark="crashed with exit code",
        pattern=r"Rank (?P<rank>\d{1,9}) crashed with exit code (?P<code>-?\d+)",
        example="ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.",
        source="mosaicml/composer composer/cli/launcher.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "mpirun"},
        mark=" noticed that process rank ",
        pattern=r"noticed that process rank (?P<rank>\d{1,9}) with PID \d+ on node (?P<host>[\w.-]+) exited on signal (?P<signal>\d+)",
        example="mpirun noticed that process rank 3 with PID 4711 on node node7 exited on signal 9 (Killed).",
        source="open-mpi/ompi docs/man-openmpi/man1/mpirun.1.rst",
    ),
    MessageRow(
        makes=ClosedProcess,
        mark="Killing subprocess ",
        pattern=r"Killing subprocess (?P<pid>\d{1,9})",
        example="[2026-11-28 10:00:00,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4712",
        source="deepspeedai/DeepSpeed deepspeed/launcher/launch.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "accelerate"},
        mark="died with <Signals.",
        pattern=r"died with <Signals\.(?P<signal>\w+): \d+>",
        example="subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' died with <Signals.SIGKILL: 9>.",
        source="huggingface/accelerate src/accelerate/commands/launch.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "ray", "why": "memory"},
        mark="killed due to memory pressure (OOM)",
        pattern=r"(?P<count>\d+) Workers? \(tasks / actors\) killed due to memory pressure \(OOM\)",
        example="(raylet) [2026-11-28 10:00:00,123 E 101 101] (raylet) node_manager.cc:3007: 2 Workers (tasks / actors) killed due to memory pressure "
        "(OOM), 0 Workers crashed due to other reasons at node (ID: 5c1d, IP: 10.0.0.4) over the last time period.",
        source="ray-project/ray src/ray/raylet/node_manager.cc",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "ray", "why": "memory"},
        mark="Task was killed due to the node running low on memory",
        pattern=r"Task was killed due to the node running low on memory",
        example="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.4, ID: 5c1d) "
        "where the task (actor ID: 8a, name=train, pid=4711, memory used=120.11GB) was running was 243.33GB / 251.56GB (0.967), which exceeds the "
        "memory usage threshold of 0.95.",
        source="ray-project/ray src/ray/raylet/node_manager.cc",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "vllm"},
        mark=" died unexpectedly, shutting down executor",
        pattern=r"(?:rank=\[(?P<rank>\d{1,7})\]|Worker proc (?P<name>\S+)) died unexpectedly, shutting down executor",
        example="(EngineCore pid=91) ERROR 08-20 03:11:40 [ray_executor_v2.py:402] RayWorkerProc rank=[2] died unexpectedly, shutting down executor.",
        source="vllm-project/vllm vllm/v1/executor",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "ray"},
        mark=" received at time=",
        pattern=r"\*\*\* (?P<signal>SIG(?:SEGV|ABRT|BUS|FPE|ILL)) received at time=\d+",
        example="(pid=4711) *** SIGSEGV received at time=1763374221 on cpu 11 ***",
        source="abseil/abseil-cpp absl/debugging/failure_signal_handler.cc, which Ray's workers install",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "ray", "why": "memory"},
        mark="where the task (",
        pattern=r"\(IP: (?P<host>[\w.:]+), ID: \w+\) where the task \(.*?pid=(?P<pid>\d{1,9}), memory used=",
        example="Memory on the node (IP: 10.0.0.4, ID: 5c1d) where the task (actor ID: 8a, name=train, pid=4711, memory used=120.11GB) was running was "
        "243.33GB / 251.56GB (0.967)",
        source="ray-project/ray src/ray/raylet/node_manager.cc",
    ),
    *(
        MessageRow(makes=UnplacedRequest, mark=mark, pattern=pattern, example=example, source=source)
        for mark, pattern, example, source in (
            (
                "pending placement groups",
                r"^\s*(?P<asks>\{.+\} \* \d+(?: \(\w+\))?): \d+\+? pending placement groups",
                " {'GPU': 1.0} * 2 (PACK): 1+ pending placement groups",
                "ray-project/ray python/ray/autoscaler/_private/util.py",
            ),
            (
                "can fulfill resource request",
                r"No available node types can fulfill resource requests? (?P<asks>\{[^}]*\})",
                "(autoscaler +10m11s, ip=10.0.0.4) Error: No available node types can fulfill resource request {'GPU': 1.0}. Add suitable node "
                "types to this cluster to resolve this issue.",
                "ray-project/ray python/ray/autoscaler/_private/event_summarizer.py",
            ),
            (
                "Waiting for creating a placement group",
                r"Waiting for creating a placement group of specs for \d+ seconds\. specs=(?P<asks>\[.*?\])",
                "INFO 06-07 18:11:35 [ray_utils.py:464] Waiting for creating a placement group of specs for 10 seconds. specs=[{'GPU': 1.0}].",
                "vllm-project/vllm vllm/v1/executor/ray_utils.py",
            ),
        )
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "ray"},
        mark="The actor ",
        pattern=r"The actor (?:died (?:unexpectedly|because)|is dead because)",
        example="ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerDict\n\tactor_id: 8a01\n"
        "\tpid: 4711\n\tip: 10.0.0.4\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
        "unexpectedly exits with a connection error code 2. End of file.",
        source=RAY,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "ray"},
        mark="A worker died or was killed while executing",
        pattern=r"A worker died or was killed while executing (?:a )?task",
        example="(raylet, ip=10.0.0.4) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
        "check the logs for the dead worker. RayTask ID: a67dc375e60ddd1a Worker ID: 6e Node ID: 5c Worker IP address: 10.0.0.4 Worker port: 10012 "
        "Worker PID: 4711",
        source="ray-project/ray python/ray/_private/worker.py",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "shell"},
        mark="Killed",
        pattern=r"(?:: line \d+: +(?P<pid>\d{1,9}) |^)(?P<signal>Killed)\b(?! process)",
        example="train.sh: line 12:  4711 Killed                  python train.py",
        source="bash, of a child ended by SIGKILL",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "shell"},
        mark="(core dumped)",
        pattern=r"(?:: line \d+: +(?P<pid>\d{1,9}) +|^)(?P<signal>Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception) +\(core dumped\)",
        example="train.sh: line 12:  4711 Segmentation fault      (core dumped) python train.py",
        source="bash, of a child ended by a signal",
    ),
)  # fmt: skip
