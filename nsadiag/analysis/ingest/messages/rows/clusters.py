"""Slurm, Kubernetes and the kernel's log: who ended a process, and why."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import ProcessEnd

STEPD = "SchedMD/slurm src/slurmd/slurmstepd"
SRUN = "SchedMD/slurm src/api/step_launch.c"
KUBERNETES = "kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure"
KERNEL = "torvalds/linux mm/oom_kill.c"

ROWS = (
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "memory"},
        mark="oom",
        pattern=r"[Dd]etected (?P<count>\d+) oom[_-]kill event",
        example="slurmstepd: error: Detected 1 oom_kill event in StepId=8812.0. Some of the step tasks have been OOM Killed.",
        source=f"{STEPD}/task/task_cgroup_memory.c",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "memory"},
        mark="Out Of Memory",
        pattern=r"srun: error: (?P<host>[\w.-]+): task(?:s (?P<ranks>[\d,-]+)| (?P<rank>\d{1,9})): Out Of Memory",
        example="srun: error: node7: task 9: Out Of Memory",
        source=SRUN,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm"},
        mark="srun: error: ",
        pattern=r"srun: error: (?P<host>[\w.-]+): task(?:s (?P<ranks>[\d,-]+)| (?P<rank>\d{1,9})): (?P<signal>Killed|Segmentation fault|Aborted|Bus error|Terminated|Illegal instruction)",
        example="srun: error: node7: task 3: Segmentation fault (core dumped)",
        source=SRUN,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm"},
        mark="Exited with exit code ",
        pattern=r"srun: error: (?P<host>[\w.-]+): task(?:s (?P<ranks>[\d,-]+)| (?P<rank>\d{1,9})): Exited with exit code (?P<code>\d+)",
        example="srun: error: node7: task 3: Exited with exit code 1",
        source=SRUN,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "time limit"},
        mark="DUE TO TIME LIMIT",
        pattern=r"(?:JOB|STEP) (?P<name>\S+) ON (?P<host>[\w.-]+) CANCELLED AT (?P<time>\S+) DUE TO TIME LIMIT",
        example="slurmstepd: error: *** JOB 8812 ON node7 CANCELLED AT 2026-11-28T10:00:00 DUE TO TIME LIMIT ***",
        source=f"{STEPD}/req.c",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "preemption"},
        mark="DUE TO PREEMPTION",
        pattern=r"(?:JOB|STEP) (?P<name>\S+) ON (?P<host>[\w.-]+) CANCELLED AT (?P<time>\S+) DUE TO PREEMPTION",
        example="slurmstepd: error: *** JOB 8812 ON node7 CANCELLED AT 2026-11-28T10:00:00 DUE TO PREEMPTION ***",
        source=f"{STEPD}/req.c",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "node failure"},
        mark="NODE FAIL",
        pattern=r"(?:JOB|STEP) (?P<name>\S+) ON (?P<host>[\w.-]+) CANCELLED AT (?P<time>\S+) DUE TO NODE FAILURE|CANCELLED .*DUE TO NODE FAIL",
        example="slurmstepd: error: *** STEP 8812.0 ON node7 CANCELLED AT 2026-11-28T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        source=f"{STEPD}/req.c",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "cancelled"},
        mark=" CANCELLED AT ",
        pattern=r"(?:JOB|STEP) (?P<name>\S+) ON (?P<host>[\w.-]+) CANCELLED AT (?P<time>\S+) (?!DUE TO (?:TIME|PREEMPT|NODE))",
        example="slurmstepd: error: *** STEP 8812.0 ON node7 CANCELLED AT 2026-11-28T10:00:00 ***",
        source=f"{STEPD}/req.c",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "slurm", "why": "node failure"},
        mark="Node failure on ",
        pattern=r"srun: error: Node failure on (?P<host>[\w.-]+)",
        example="srun: error: Node failure on node7",
        source=SRUN,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "kernel", "why": "memory", "signal": "SIGKILL"},
        mark="illed process ",
        pattern=r"[Oo]ut of memory: Killed process (?P<pid>\d{1,9}) \((?P<name>[^)]*)\)",
        example="[12345.678901] Out of memory: Killed process 8811 (python) total-vm:91234567kB, anon-rss:61234567kB, file-rss:0kB",
        source=KERNEL,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "kernel", "why": "memory", "signal": "SIGKILL"},
        mark="oom-kill:constraint=",
        pattern=r"oom-kill:constraint=.*?,task=(?P<name>[^,]*),pid=(?P<pid>\d{1,9})",
        example="Nov 28 10:00:00 node7 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri,oom_memcg=/kubepods/pod1,task_memcg=/kubepods/"
        "pod1,task=python,pid=8811,uid=0",
        source=KERNEL,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "kernel", "signal": "SIGSEGV"},
        mark=" segfault at ",
        pattern=r"(?P<name>[\w.:/-]+)\[(?P<pid>\d{1,9})\]: segfault at ",
        example="[12345.678901] python[8811]: segfault at 10 ip 00007f2a sp 00007ffd error 4 in libcuda.so.1[7f2a+1000]",
        source="torvalds/linux arch/x86/mm/fault.c",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "kubernetes", "why": "memory", "signal": "SIGKILL"},
        mark="OOMKilled",
        pattern=r"\bOOMKilled\b",
        example="      Reason:       OOMKilled\n      Exit Code:    137",
        source=KUBERNETES,
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "kubernetes", "why": "eviction"},
        mark="Evicted",
        pattern=r"(?:Reason:\s+|\s)Evicted\b",
        example="Reason:           Evicted",
        source="kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction",
    ),
    MessageRow(
        makes=ProcessEnd,
        fixed={"by": "kubernetes"},
        mark="Exit Code:",
        pattern=r"Exit Code:\s+(?P<code>(?!0\b)\d{1,3})\b",
        example="      Exit Code:    137",
        source=KUBERNETES,
    ),
)  # fmt: skip
