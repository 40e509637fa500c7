"""Cursors: the position and the snapshot of the next page, signed so that only servers can create them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from sluice.errors import QueryError

SECRET = "cursors"
"""Name of the signing key in the ledger. All servers share the key, so each accepts the others'
cursors."""

_SIGNATURE_BYTES = 16


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last entry of the previous page, with its store and snapshot."""

    pipeline: str
    store: str
    snapshot: str
    key: str
    window_start: int
    window_end: int


def write_cursor(cursor: Cursor, secret: bytes) -> str:
    """Return the cursor as text for a URL."""
    content = msgspec.json.encode(cursor)
    return base64.urlsafe_b64encode(_signature(content, secret) + content).decode().rstrip("=")


def read_cursor(text: str, secret: bytes, store: str) -> Cursor:
    """Parse a cursor of `store`.

    Raises QueryError for another store's cursor, or if the signature is wrong.
    """
    try:
        signed = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        signature, content = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        # Anyone can send a text, so the content is parsed only if a server has signed it.
        if hmac.compare_digest(signature, _signature(content, secret)):
            cursor = msgspec.json.decode(content, type=Cursor)
            if cursor.store == store:
                return cursor
    except (binascii.Error, msgspec.DecodeError, ValueError):
        pass
    raise QueryError(
        "This is not a cursor for this store.",
        next_step="Omit the cursor to start with the first page.",
    )


def _signature(content: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, content, hashlib.sha256)[:_SIGNATURE_BYTES]
