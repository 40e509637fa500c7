"""Cursors: where the next page goes on, and in which snapshot, signed so that nobody but a server can make one."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from sluice.errors import QueryError

SECRET = "cursors"
"""Name of the key in the ledger: whichever server gave a cursor, every other one takes it."""

_SIGNATURE_BYTES = 16


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last entry of the page before."""

    pipeline: str
    store: str
    snapshot: str
    key: str
    window_start: int


def write_cursor(cursor: Cursor, secret: bytes) -> str:
    """The cursor as text for a URL."""
    content = msgspec.json.encode(cursor)
    return base64.urlsafe_b64encode(_signature(content, secret) + content).decode().rstrip("=")


def read_cursor(text: str, secret: bytes, store: str) -> Cursor:
    """The cursor of a page of `store`; QueryError if it is of another one, or was not made by `write_cursor`."""
    try:
        signed = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        signature, content = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if hmac.compare_digest(signature, _signature(content, secret)):
            cursor = msgspec.json.decode(content, type=Cursor)
            if cursor.store == store:
                return cursor
    except (binascii.Error, msgspec.DecodeError, ValueError):
        pass
    raise QueryError("This is no cursor of this store.", next_step="Leave it out to begin with the first page.")


def _signature(content: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, content, hashlib.sha256)[:_SIGNATURE_BYTES]
