"""The meeting place and identity of agents: addresses and ports, checked before anything is started."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from dataclasses import dataclass, replace

import psutil

from nsadiag.cluster.protocol.tokens import SHORTEST_TOKEN, TOKEN_VARIABLE, checked_token, new_token
from nsadiag.errors import MachineError, UsageError

# torchrun's own rendezvous has 29400, its job 29500: a line of the user's that names neither must not meet us.
DEFAULT_PORT = 29450
DEFAULT_WAIT_S = 300.0
BACKLOG = 4096  # strangers may fill it; the kernel takes net.core.somaxconn where that is less


@dataclass(frozen=True, kw_only=True)
class Place:
    """One node's part of a run on several; the options are spelled as torchrun's."""

    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int = DEFAULT_PORT
    local_addr: str | None = None  # node 0 listens on this address, or interface, alone
    token: str = ""
    wait_s: float = DEFAULT_WAIT_S

    @property
    def is_first(self) -> bool:
        return self.node_rank == 0


def checked_place(
    *,
    nnodes: int | None,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None = None,
    local_addr: str | None = None,
    token: str | None = None,
    wait_s: float = DEFAULT_WAIT_S,
) -> Place | None:
    """None where one machine is all there is. Raises UsageError where the options do not belong together.

    A token of the environment is taken out of it: the job has no use for it.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    token = token or given
    if nnodes is None or nnodes == 1:
        lonely = {"--node-rank": node_rank, "--master-addr": master_addr, "--master-port": master_port}
        name = next((name for name, value in lonely.items() if value), None)
        if name is not None and nnodes is None:
            raise UsageError(
                f"{name} is given, and --nnodes is not", "say how many nodes there are: --nnodes 2"
            )
        return None
    if node_rank is None or not 0 <= node_rank < nnodes:
        raise UsageError(
            "--nnodes needs --node-rank"
            if node_rank is None
            else f"--node-rank is {node_rank}, of {nnodes} nodes",
            f"give each node a number of its own, from 0 to {nnodes - 1}",
        )
    if not master_addr:
        raise UsageError(
            "--nnodes needs --master-addr", "the name or address of node 0, as the others reach it"
        )
    if node_rank and not token:
        raise UsageError(
            f"node {node_rank} was not given the run's token",
            f"node 0 prints it; or set the same {TOKEN_VARIABLE} on every node, of {SHORTEST_TOKEN} letters or more",
        )
    return Place(
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=DEFAULT_PORT if master_port is None else master_port,
        local_addr=local_addr,
        token=checked_token(token) if token else "",
        wait_s=wait_s,
    )


def with_token(place: Place) -> Place:
    """Node 0 makes one where none was given."""
    return place if place.token else replace(place, token=new_token())


def resolved(name: str) -> tuple[socket.AddressFamily, str]:
    """Family and address. Raises UsageError."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"--master-addr {name} is no address that this machine knows: {error.strerror}",
            "give node 0's host name or address, as this machine reaches it",
        ) from None
    # torch's store listens on IPv4 first, too.
    family, _, _, _, address = min(found, key=lambda f: f[0] != socket.AF_INET)
    return family, str(address[0])


def address_to_bind(place: Place) -> tuple[socket.AddressFamily, str]:
    """The one address that node 0 listens on. Raises UsageError."""
    if place.local_addr:
        return _of_interface(place.local_addr) or resolved(place.local_addr)
    family, address = resolved(place.master_addr)
    asked_for = place.master_addr == "localhost" or _is_address(place.master_addr)
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback and not asked_for:
        raise UsageError(
            f"--master-addr {place.master_addr} is {address} on this machine, where no other one can reach it",
            "give node 0's address instead of its name (a line in /etc/hosts says 127.0.1.1), or --local-addr",
        )
    return family, address


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.partition("%")[0])
        return True
    return False


def _of_interface(name: str) -> tuple[socket.AddressFamily, str] | None:
    addresses = psutil.net_if_addrs().get(name, [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for each in addresses:
            if each.family == family:
                return family, each.address
    return None


def listen(place: Place, family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """A socket that listens there and nowhere else. Raises NsadiagError."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"{place.local_addr or place.master_addr} is {address}, which is no address of this machine",
                "node 0 runs on the machine that --master-addr names; --local-addr says which of its addresses to listen on",
            ) from None
        if error.errno == errno.EADDRINUSE:
            raise MachineError(
                f"port {port} of {address} is taken",
                "another run may use it: give another --master-port on every node",
            ) from None
        raise MachineError(f"cannot listen on {address}:{port}: {error.strerror}") from None
    return listener


def free_port(family: socket.AddressFamily, address: str) -> int:
    """A port that nobody has at this moment, for the job's own rendezvous."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
