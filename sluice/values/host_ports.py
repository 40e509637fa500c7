"""Addresses of servers, as people write them: HOST:PORT, or [HOST]:PORT for an IPv6 address."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address

_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_MOST_PORT = 65_535


def is_host(text: str) -> bool:
    """Return whether the text is a host's name or IP address, without a port and brackets."""
    if ":" not in text:
        return _NAME.fullmatch(text) is not None
    # Reject an address with a scope, such as fe80::1%eth0: the scope names an interface of one
    # host, and has no meaning on another.
    try:
        return IPv6Address(text).scope_id is None
    except AddressValueError:
        return False


def _url_host(host: str) -> str:
    """Return the host as it is written in a URL: an IPv6 address in brackets."""
    if ":" in host:
        return f"[{host}]"
    return host


def address_of(host: str, port: int) -> str:
    """Return the address of a server; the inverse of `parse_address`."""
    return f"{_url_host(host)}:{port}"


def parse_address(address: str) -> tuple[str, int] | None:
    """Return the host and the port of an address; None if the text is not an address."""
    shown, _, port = address.rpartition(":")
    host = shown
    if shown.startswith("[") and shown.endswith("]"):
        host = shown[1:-1]
    if not is_host(host) or _url_host(host) != shown or not (port.isascii() and port.isdecimal()):
        return None
    # Parse only the first digits, because Python raises an error for thousands of digits.
    if 0 < int(port[:6]) <= _MOST_PORT:
        return (host, int(port))
    return None
