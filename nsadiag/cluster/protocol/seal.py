"""Documents sealed with the run's token, and the keys of one connection.

Nothing is encrypted: whoever can read the network reads along, but cannot take part.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any

from nsadiag.errors import UsageError

TOKEN_VARIABLE = "NSADIAG_RUN_TOKEN"
SHORTEST_TOKEN = 12
MAC_BYTES = hashlib.sha256().digest_size
MOST_SEALED = 32 * 1024


def new_token() -> str:
    """192 random bits, in letters that need no quoting."""
    # A leading dash would look like an option where it is pasted behind --run-token.
    return "t" + secrets.token_urlsafe(24)


def checked_token(token: str) -> str:
    """The token as given. Raises UsageError where it could be guessed."""
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"the run token has {len(token)} characters, and needs {SHORTEST_TOKEN}",
            'python -c "import secrets; print(secrets.token_urlsafe(24))" makes one',
        )
    return token


def derive(token: str, *purpose: bytes) -> bytes:
    """A key for one purpose; no two lists of purposes give the same."""
    told = b"".join(len(part).to_bytes(4, "big") + part for part in purpose)
    return hmac.digest(token.encode(), told, "sha256")


def same(one: bytes, other: bytes) -> bool:
    """Compared in a time that does not tell where they differ."""
    return hmac.compare_digest(one, other)


def seal(token: str, purpose: str, body: dict[str, Any]) -> bytes:
    """The document, and the proof that it was written for this purpose by one who knows the token."""
    text = json.dumps(body).encode()
    if len(text) + MAC_BYTES > MOST_SEALED:
        raise ValueError(f"{len(text)} bytes are too many to seal")
    return hmac.digest(derive(token, b"seal", purpose.encode()), text, "sha256") + text


def unseal(token: str, purpose: str, sealed: bytes) -> dict[str, Any] | None:
    """The document; None for whatever was not sealed for this purpose with this token."""
    if not MAC_BYTES < len(sealed) <= MOST_SEALED:
        return None
    mac, text = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
    if not same(mac, hmac.digest(derive(token, b"seal", purpose.encode()), text, "sha256")):
        return None
    body = json.loads(text)
    return body if isinstance(body, dict) else None
