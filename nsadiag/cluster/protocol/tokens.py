"""The run's token, and the keys of one connection.

Nothing is encrypted: whoever can read the network reads along, but cannot take part.
"""

from __future__ import annotations

import hmac
import secrets

from nsadiag.errors import UsageError

TOKEN_VARIABLE = "NSADIAG_RUN_TOKEN"
SHORTEST_TOKEN = 12


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
