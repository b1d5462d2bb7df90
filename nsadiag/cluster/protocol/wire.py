"""The side channel's bytes, without a socket: how two agents prove the token to each other, and frames from then on.

A frame is a JSON document and, for evidence, some bytes behind it; it carries a proof over its number, so that none
can be forged, left out, repeated or put elsewhere. Nothing is unpickled, and nothing is believed before its proof.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from collections.abc import Iterator
from typing import Any

from nsadiag.cluster.protocol.tokens import derive, same

MAGIC = b"NSADIAG1"
NONCE_BYTES, PROOF_BYTES, MAC_BYTES = 16, 32, 16
CLIENT_HELLO = struct.Struct(f"!8s{NONCE_BYTES}sI{PROOF_BYTES}s")
SIZES = struct.Struct("!II")
MOST_NOTE, MOST_BLOB = 1024 * 1024, 256 * 1024
MOST_NODES = 65536

Frame = tuple[dict[str, Any], bytes]


class Refused(Exception):
    """The other side does not know the token, or does not keep to the protocol: the connection is to be closed."""


class WrongToken(Refused):
    """The other side speaks the protocol, with another token. Node 0 answers a proof that proves nothing."""


class Frames:
    """One connection after its greeting: packs what we send, and unpacks what comes, checking each proof."""

    def __init__(self, *, out: bytes, into: bytes) -> None:
        self._keys, self._counts, self._unread = (out, into), [0, 0], bytearray()

    def pack(self, note: dict[str, Any], blob: bytes = b"") -> bytes:
        """A frame. Raises ValueError where it is larger than the other side would take."""
        text = json.dumps(note).encode()
        if len(text) > MOST_NOTE or len(blob) > MOST_BLOB:
            raise ValueError(f"a frame of {len(text)} and {len(blob)} bytes is too large")
        frame = SIZES.pack(len(text), len(blob)) + text + blob
        return frame + self._mac(0, frame)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Whole frames, as they are complete. Raises Refused."""
        self._unread += data
        while len(self._unread) >= SIZES.size:
            note_bytes, blob_bytes = SIZES.unpack_from(self._unread)
            if note_bytes > MOST_NOTE or blob_bytes > MOST_BLOB:
                raise Refused("a frame that is too large")
            end = SIZES.size + note_bytes + blob_bytes
            if len(self._unread) < end + MAC_BYTES:
                return
            frame, mac = bytes(self._unread[:end]), bytes(self._unread[end : end + MAC_BYTES])
            del self._unread[: end + MAC_BYTES]
            if not same(mac, self._mac(1, frame)):
                raise Refused("a frame without its proof")
            yield _read(frame, note_bytes)

    def _mac(self, direction: int, frame: bytes) -> bytes:
        count = self._counts[direction]
        self._counts[direction] += 1
        return hmac.digest(self._keys[direction], count.to_bytes(8, "big") + frame, "sha256")[:MAC_BYTES]


def _read(frame: bytes, note_bytes: int) -> Frame:
    try:
        note = json.loads(frame[SIZES.size : SIZES.size + note_bytes])
    except (ValueError, RecursionError) as error:
        raise Refused("a frame that is no JSON") from error
    if not isinstance(note, dict):
        raise Refused("a frame that is no document")
    return note, frame[SIZES.size + note_bytes :]


class ServerGreeting:
    """Node 0's side: it speaks first, and tells nothing but a random number before the other has proved the token."""

    def __init__(self, token: str) -> None:
        self._token, self._nonce = token, secrets.token_bytes(NONCE_BYTES)
        self._unread = b""
        self.outgoing = MAGIC + self._nonce

    def feed(self, data: bytes) -> tuple[int, bytes, Frames, bytes] | None:
        """Node rank, what to answer, the frames from here on, and what was read of them; None as long as it is not all here."""
        self._unread += data
        if not MAGIC.startswith(self._unread[: len(MAGIC)]):
            raise Refused("no agent of nsadiag")
        if len(self._unread) < CLIENT_HELLO.size:
            return None
        hello, rest = self._unread[: CLIENT_HELLO.size], self._unread[CLIENT_HELLO.size :]
        _, nonce, node_rank, proof = CLIENT_HELLO.unpack(hello)
        if not same(proof, _proof(self._token, b"client", self._nonce, nonce, node_rank)):
            raise WrongToken("an agent with another run token")
        if node_rank >= MOST_NODES:
            raise Refused("a node rank out of range")
        answer = _proof(self._token, b"server", self._nonce, nonce, node_rank)
        return node_rank, answer, _frames(self._token, self._nonce, nonce, node_rank, server_side=True), rest


class ClientGreeting:
    """The side of every other node."""

    def __init__(self, token: str, node_rank: int) -> None:
        self._token, self._node_rank, self._nonce = token, node_rank, secrets.token_bytes(NONCE_BYTES)
        self._theirs = b""
        self._unread = b""

    def feed(self, data: bytes) -> tuple[bytes, Frames | None, bytes]:
        """The bytes to send, the frames once node 0 has proved the token too, and the bytes read of them."""
        self._unread += data
        if not self._theirs:
            if not MAGIC.startswith(self._unread[: len(MAGIC)]):
                raise Refused("no agent of nsadiag")
            if len(self._unread) < len(MAGIC) + NONCE_BYTES:
                return b"", None, b""
            self._theirs = self._unread[len(MAGIC) : len(MAGIC) + NONCE_BYTES]
            self._unread = self._unread[len(MAGIC) + NONCE_BYTES :]
            proof = _proof(self._token, b"client", self._theirs, self._nonce, self._node_rank)
            return CLIENT_HELLO.pack(MAGIC, self._nonce, self._node_rank, proof), None, b""
        if len(self._unread) < PROOF_BYTES:
            return b"", None, b""
        proof, rest = self._unread[:PROOF_BYTES], self._unread[PROOF_BYTES:]
        if not same(proof, _proof(self._token, b"server", self._theirs, self._nonce, self._node_rank)):
            raise WrongToken("a node 0 with another run token")
        return b"", _frames(self._token, self._theirs, self._nonce, self._node_rank, server_side=False), rest


def _proof(token: str, side: bytes, server: bytes, client: bytes, node_rank: int) -> bytes:
    return derive(token, b"proof", side, server, client, node_rank.to_bytes(4, "big"))


def _frames(token: str, server: bytes, client: bytes, node_rank: int, *, server_side: bool) -> Frames:
    keys = [
        derive(token, b"frames", side, server, client, node_rank.to_bytes(4, "big"))
        for side in (b"server", b"client")
    ]
    out, into = keys if server_side else keys[::-1]
    return Frames(out=out, into=into)
