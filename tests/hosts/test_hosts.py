"""The hosts that the other tests here run on are as separate as machines are, and leave nothing behind."""

import errno
import signal
import sys
from pathlib import Path

import pytest
from support.cluster.hosts import DISK, Host, Hosts, send
from support.cluster.slurm import GPUS, Slurm
from support.cluster.switch import UnsupportedByKernel
from support.jobs import wait_until

# Says how much came, once its peer has said that this was all.
LISTEN = """
import socket
server = socket.create_server(("", 4711))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    count = 0
    while data := peer.recv(65536):
        count += len(data)
    peer.sendall(str(count).encode())
    peer.close()
"""
REACH = """
import socket, sys, time
began = time.monotonic()
peer = socket.create_connection(("node1", 4711), 2)
peer.settimeout(20)
peer.sendall(b"x" * int(sys.argv[1]))
peer.shutdown(socket.SHUT_WR)
assert peer.recv(100).decode() == sys.argv[1]
print(time.monotonic() - began)
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.fixture
def listener(hosts: Hosts) -> Host:
    """node1, where somebody listens."""
    listening = hosts[1].start(*python(LISTEN))
    assert listening.stdout is not None and listening.stdout.readline() == "listening\n"
    return hosts[1]


def seconds_to_send(host: Host, count: int) -> float:
    return float(host.run(*python(REACH, count)).stdout)


def test_hosts_have_names_disks_processes_and_clocks_of_their_own(hosts: Hosts, tmp_path: Path) -> None:
    a, b = hosts
    assert [host.run("hostname").stdout.strip() for host in hosts] == ["node0", "node1"]
    for place in ("/tmp", "/dev/shm", DISK):
        a.run("touch", f"{place}/mine")
        assert "mine" not in b.run("ls", place).stdout
        assert a.path(f"{place}/mine").exists()
    a.run("touch", tmp_path / "ours")
    assert "ours" in b.run("ls", tmp_path).stdout and (tmp_path / "ours").exists()
    sleeping = a.start("sleep", "60")
    wait_until(lambda: "sleep 60 " in a.processes().values(), "it sleeps")
    assert [host.run("pgrep", "-cx", "sleep", check=False).stdout for host in hosts] == ["1\n", "0\n"]
    assert b.processes() == {}
    send(sleeping, signal.SIGTERM)
    assert sleeping.wait(10) == -signal.SIGTERM
    up = [float(host.run(*python("import time; print(time.monotonic())")).stdout) for host in hosts]
    assert up[1] - up[0] > 80_000


def test_a_host_is_reached_by_name_until_its_cable_is_pulled(hosts: Hosts, listener: Host) -> None:
    seconds_to_send(hosts[0], 3)
    listener.unplug()
    assert "timed out" in hosts[0].run(*python(REACH, 3), check=False).stderr
    listener.plug()
    seconds_to_send(hosts[0], 3)


def test_a_network_can_be_slow(hosts: Hosts, listener: Host) -> None:
    assert seconds_to_send(hosts[0], 200_000) < 0.5
    listener.throttle("1mbit")
    assert seconds_to_send(hosts[0], 200_000) > 1
    listener.heal()
    assert seconds_to_send(hosts[0], 200_000) < 0.5


def test_packets_can_be_lost(hosts: Hosts, listener: Host) -> None:
    listener.lose(100)
    assert "timed out" in hosts[0].run(*python(REACH, 3), check=False).stderr
    listener.heal()
    seconds_to_send(hosts[0], 3)


def test_packets_can_be_late(hosts: Hosts, listener: Host) -> None:
    try:
        listener.netem("delay", "40ms")
    except UnsupportedByKernel as error:
        pytest.skip(str(error))
    assert seconds_to_send(hosts[0], 3) > 0.08


def test_a_disk_can_be_full_on_one_host(hosts: Hosts) -> None:
    a, b = hosts
    a.fill_disk(leave_kib=64)
    a.path(DISK / "little").write_bytes(b"x" * 1000)
    with pytest.raises(OSError) as refused:
        a.path(DISK / "much").write_bytes(b"x" * 100_000)
    assert refused.value.errno == errno.ENOSPC
    b.path(DISK / "much").write_bytes(b"x" * 100_000)
    a.empty_disk()
    a.path(DISK / "much").write_bytes(b"x" * 100_000)


def test_nothing_outlives_its_host(tmp_path: Path) -> None:
    """Not even a process in a session of its own that has ignored every signal that it may ignore."""
    alone = Hosts(("node0",), tmp_path)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    started = alone[0].start("setsid", *python(stubborn))
    assert started.stdout is not None and started.stdout.readline() == "up\n"
    (pid,) = alone[0].processes()
    alone.close()
    assert not Path(f"/proc/{pid}").exists()


def test_slurm_starts_a_task_on_each_node_with_its_gpus(slurm: Slurm) -> None:
    line = "echo $(hostname) $SLURM_PROCID of $SLURM_NTASKS, $CUDA_VISIBLE_DEVICES"
    gpus = f"--gpus-per-node={GPUS}"
    done = slurm.head.run("srun", "-N2", "--ntasks-per-node=1", gpus, "sh", "-c", line)
    assert sorted(done.stdout.splitlines()) == ["node0 0 of 2, 0,1", "node1 1 of 2, 0,1"], slurm.logs()
    waiting = slurm.head.run("sbatch", "--parsable", "-N2", "--exclusive", "--wrap", "srun sleep 60").stdout
    next_one = slurm.head.run("sbatch", "--parsable", "-N2", "--wrap", "true").stdout
    wait_until(lambda: slurm.job(waiting.strip()).get("JobState") == "RUNNING", "the first runs")
    assert slurm.job(next_one.strip())["JobState"] == "PENDING"
    slurm.head.run("scancel", waiting.strip(), next_one.strip())
    wait_until(lambda: not slurm.jobs(), "nothing waits or runs")
