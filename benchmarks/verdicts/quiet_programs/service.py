"""The world outside the job: an HTTP service that is late, slow or busy, and holds locks and pipes on request.

python service.py    # prints its port, and serves until it is ended
"""

from __future__ import annotations

import fcntl
import http.server
import threading
import time
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit


def hold_lock(path: str, seconds: float) -> None:
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(seconds)


def write_late(path: str, seconds: float, pieces: int) -> None:
    """Into a FIFO, with a pause before each piece."""
    with Path(path).open("wb", buffering=0) as file:
        for _ in range(pieces):
            time.sleep(seconds / pieces)
            file.write(bytes(1000))


def create_late(path: str, seconds: float) -> None:
    time.sleep(seconds)
    part = Path(path + ".part")
    part.write_text("done")
    part.rename(path)


class Service(http.server.BaseHTTPRequestHandler):
    open_from: ClassVar[dict[str, float]] = {}  # when a busy resource is ready, by key

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        getattr(self, url.path.strip("/"))(asked, float(asked.get("s", "0")))

    def do_POST(self) -> None:
        """An upload, read as slowly as asked."""
        left, seconds = int(self.headers["Content-Length"]), float(self.headers["X-Seconds"])
        piece = max(left // 20, 1)
        while left > 0:
            time.sleep(seconds / 20)
            left -= len(self.rfile.read(min(piece, left)))
        self._answer(200)

    def late(self, asked: dict[str, str], seconds: float) -> None:
        time.sleep(seconds)
        self._answer(200)

    def trickle(self, asked: dict[str, str], seconds: float) -> None:
        pieces = int(asked["pieces"])
        self.send_response(200)
        self.end_headers()
        for _ in range(pieces):
            time.sleep(seconds / pieces)
            self.wfile.write(bytes(500) + b"\n")
            self.wfile.flush()

    def busy(self, asked: dict[str, str], seconds: float) -> None:
        """503 until so many seconds after the first request with that key."""
        ready = self.open_from.setdefault(asked["key"], time.monotonic() + seconds)
        self._answer(200 if time.monotonic() >= ready else 503)

    def lock(self, asked: dict[str, str], seconds: float) -> None:
        threading.Thread(target=hold_lock, args=(asked["path"], seconds), daemon=True).start()
        time.sleep(0.2)
        self._answer(200)

    def fifo(self, asked: dict[str, str], seconds: float) -> None:
        arguments = (asked["path"], seconds, int(asked["pieces"]))
        threading.Thread(target=write_late, args=arguments, daemon=True).start()
        self._answer(200)

    def create(self, asked: dict[str, str], seconds: float) -> None:
        threading.Thread(target=create_late, args=(asked["path"], seconds), daemon=True).start()
        self._answer(200)

    def _answer(self, code: int) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b"done")

    def log_message(self, *args: Any) -> None:
        return


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer waits is no error."""


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Service)
    print(server.server_port, flush=True)
    server.serve_forever()
