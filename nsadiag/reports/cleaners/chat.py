"""The cleaner of what webhooks are sent: chats make mentions, links and pictures of text."""

from __future__ import annotations

from nsadiag.printing import Shown, one_line
from nsadiag.reports.cleaners.inline import IN_CHATS, pieces

_ENTITIES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)  # Slack's `<!channel>`, `<@id>`, `<address|text>`


class Chat(Shown):
    """One line for Slack, Mattermost and Rocket.Chat."""

    __slots__ = ()


def chat(text: object) -> Chat:
    """The text in one line; a word that is more than a word is code, a picture's brackets are apart."""
    shown = (_shown(part.replace("`", "'"), is_code) for part, is_code in pieces(one_line(text), IN_CHATS))
    return Chat("".join(shown).translate(_ENTITIES))


def _shown(part: str, is_code: bool) -> str:
    return f"`{part}`" if is_code and part.strip() else part.replace("](", "] (")
