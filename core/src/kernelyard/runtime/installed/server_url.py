"""URLs of servers that keep what machines share, checked before anything is asked of them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from kernelyard.errors import OptionError
from kernelyard.records import NamedTuple


class ServerURL(NamedTuple):
    """A server's URL without the account in it, and the account as `name:password`, or ""."""

    url: str
    account: str


def read_server_url(text: str) -> ServerURL:
    """Return the parts of an http or https URL.

    Raises: OptionError for another text.

    Example:
        >>> read_server_url("http://me:secret@host:8080/cache/")
        ServerURL(url='http://host:8080/cache', account='me:secret')
    """
    try:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(text)
    except ValueError:  # also of a port, and of brackets
        example = "http://host:8080"
        hint = None if "://" in text else f"write the scheme, too: {example}"
        raise OptionError(
            "a remote cache is no URL of a server", found=repr(text), expected=example, hint=hint
        ) from None
    account, _, server = parts.netloc.rpartition("@")
    return ServerURL(urlunsplit((parts.scheme, server, parts.path.rstrip("/"), "", "")), account)
