"""Gloo, and torch's store: peers that are gone, keys that nobody set, ports that are taken."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import (
    LostPeer,
    PortTaken,
    Rendezvous,
    StatedError,
    StoreWait,
    ToolAnswer,
)

GLOO_PAIR = "pytorch/gloo gloo/transport/tcp/pair.cc"
GLOO_BUFFER = "pytorch/gloo gloo/transport/tcp/unbound_buffer.cc"
STORE = "pytorch/pytorch torch/csrc/distributed/c10d/TCPStore.cpp"
SOCKET = "pytorch/pytorch torch/csrc/distributed/c10d/socket.cpp"
GLOO = "pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
PEER = r"\[(?P<peer>[\w.:-]+)\]:(?P<port>\d{1,5})"

ROWS = (
    MessageRow(
        makes=LostPeer,
        mark="Connection closed by peer",
        pattern=rf"Connection closed by peer {PEER}",
        example="[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41023",
        source=GLOO_PAIR,
    ),
    MessageRow(
        makes=LostPeer,
        mark="Connection reset by peer",
        pattern=rf"(?:Read|Write) error {PEER}: Connection reset by peer|(?:recv|send)\w*\b.*Connection reset by peer",
        example="[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [10.0.0.7]:41023: Connection reset by peer",
        source=GLOO_PAIR,
    ),
    MessageRow(
        makes=LostPeer,
        mark="Timed out waiting ",
        pattern=r"Timed out waiting (?P<seconds_ms>\d+)ms for (?:recv|send) operation to complete",
        example="[rank4]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send "
        "operation to complete",
        source=GLOO_BUFFER,
    ),
    MessageRow(
        makes=LostPeer,
        mark="SO_ERROR: ",
        pattern=rf"SO_ERROR: [^,\]]+, remote={PEER}(?:, rank=(?P<rank>\d{{1,9}}))?",
        example="RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection "
        "refused, remote=[127.0.0.2]:2485, rank=0, size=2",
        source=GLOO_PAIR,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "gloo", "type": "RuntimeError"},
        mark="connectFullMesh failed",
        pattern=r"(?P<text>Gloo connectFullMesh failed with .*)",
        example="[rank1]: RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        source=GLOO,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "network", "ends_it": False},
        mark="Using the loopback address as fallback",
        pattern=r"(?P<text>Unable to resolve hostname to a \(local\) address\. Using the loopback address as fallback.*)",
        example="[W1128 10:00:00.1 ProcessGroupGloo.cpp:760] Warning: Unable to resolve hostname to a (local) address. Using the loopback address "
        "as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())",
        source=GLOO,
    ),
    MessageRow(
        makes=ToolAnswer,
        fixed={"tool": "monitored barrier", "kind": "missing"},
        mark="failed to pass monitoredBarrier",
        pattern=r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in \d+ ms",
        example="[rank0]: RuntimeError: Rank 3, 5 failed to pass monitoredBarrier in 30000 ms",
        source=GLOO,
    ),
    MessageRow(
        makes=StoreWait,
        mark="wait timeout after ",
        pattern=r"wait timeout after (?P<seconds_ms>\d+)ms, keys: (?P<key>\S+)",
        example="[rank1]: torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
        source=STORE,
        versions="torch 2.4 and later",
    ),
    MessageRow(
        makes=StoreWait,
        mark="store->get('",
        pattern=r"store->get\('(?P<key>[^']*)'\)",
        example="[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Connection reset by peer",
        source="pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    MessageRow(
        makes=StoreWait,
        mark="Timeout waiting for key: ",
        pattern=r"Timeout waiting for key: (?P<key>.+?) after (?P<seconds_ms>\d+) ms",
        example="RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
        source="pytorch/pytorch torch/csrc/distributed/c10d/FileStore.cpp, HashStore.cpp",
    ),
    MessageRow(
        makes=Rendezvous,
        mark="clients joined",
        pattern=r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) clients joined",
        example="torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 31/32 clients joined.",
        source=STORE,
    ),
    MessageRow(
        makes=Rendezvous,
        mark="num_workers_joined=",
        pattern=r"(?:on rank: (?P<rank>\d{1,9}), .*)?world_size=(?P<expected>\d+), num_workers_joined=(?P<joined>\d+)",
        example="torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=8, num_workers_joined=7, timeout=0:30:00 error=wait timeout)",
        source="pytorch/pytorch torch/distributed/distributed_c10d.py",
    ),
    MessageRow(
        makes=Rendezvous,
        mark="worker_count=",
        pattern=r"(?:on rank: (?P<rank>\d{1,9}), .*)?world_size=(?P<expected>\d+), worker_count=(?P<joined>\d+)",
        example="RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
        "(world_size=8, worker_count=7, timeout=0:30:00)",
        source="pytorch/pytorch torch/distributed/distributed_c10d.py",
        versions="torch 1.8 to 2.0",
    ),
    MessageRow(
        makes=LostPeer,
        mark="client socket has ",
        pattern=r"client socket has (?:timed out after (?P<seconds_ms>\d+)ms? while trying to connect|failed to connect) to (?:any network address of )?"
        r"\(?\[?(?P<peer>[\w.:-]+?)\]?(?:, | )(?P<port>\d{1,5})\)?",
        example="torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29500).",
        source=SOCKET,
    ),
    MessageRow(
        makes=LostPeer,
        mark="failed to connect/validate to host ",
        pattern=r"TCP client failed to connect/validate to host (?P<peer>[\w.:-]+?):(?P<port>\d{1,5}) ",
        example="[W1128 10:00:00.1 socket.cpp:697] [c10d] TCP client failed to connect/validate to host train-master-0:23456 - retrying (try=0, "
        "timeout=60000ms, delay=45211ms): The IPv4 network addresses of (train-master-0, 23456) cannot be retrieved (gai error: -2 - Name or "
        "service not known).",
        source=SOCKET,
        versions="torch 2.6 and later",
    ),
    MessageRow(
        makes=PortTaken,
        mark="server socket has failed to ",
        pattern=r"server socket has failed to (?:listen|bind)(?:.*?port: (?P<port>\d{1,5}))?.*(?:EADDRINUSE|[aA]ddress already in use|code: -?98)",
        example="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: "
        "false, code: -98, name: EADDRINUSE, message: address already in use",
        source=SOCKET,
    ),
    MessageRow(
        makes=PortTaken,
        mark="ddress already in use",
        pattern=r"(?:errno: 98 - |\[Errno 98\] )[aA]ddress already in use",
        example="[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        source=SOCKET,
    ),
    MessageRow(
        makes=LostPeer,
        mark="Broken pipe",
        pattern=r"sendBytes failed on .*?remote=\[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d{1,5})\)?: Broken pipe|sendBytes failed.*Broken pipe",
        example="[W1128 10:00:00.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=66, addr=[n7]:52244, remote=[10.0.0.1]:29500): Broken pipe",
        source="pytorch/pytorch torch/csrc/distributed/c10d/Utils.hpp",
    ),
    MessageRow(
        makes=LostPeer,
        mark="recvValue failed",
        pattern=r"recvValue failed on .*?remote=\[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d{1,5})\)?",
        example="[rank3]:[W1128 10:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=80, addr=[n7]:52260, remote=[10.0.0.1]:29500): "
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        source="pytorch/pytorch torch/csrc/distributed/c10d/Utils.hpp",
    ),
)  # fmt: skip
