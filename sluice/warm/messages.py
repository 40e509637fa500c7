"""The messages that a run's client and a warm driver exchange through a Unix socket.

The client sends a request: four bytes with the length of the JSON text, the text, and the
descriptors of its standard output and standard error. The driver answers with lines of JSON: one
when the run starts, and one when it has ended. If the connection ends without the last line, the
driver is lost.
"""

from __future__ import annotations

import socket
import struct

import msgspec

_LENGTH = struct.Struct(">I")
_LONGEST = 16_000_000
_DESCRIPTORS = 2
PART = 65_536


class Request(msgspec.Struct, frozen=True):
    """A request to do a run on a warm driver."""

    key: str
    """The key of the driver that the client expects."""
    arguments: list[str]
    """The arguments of `driver.py`."""
    environment: dict[str, str]
    folder: str
    """The client's current folder."""
    umask: int


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line from the driver. A reply without a status says that the run has started."""

    status: int | None = None
    """The exit status of the run's process; negative for a signal, as in `subprocess`."""
    refused: str = ""
    """Why the driver does not run the request."""


def send_request(connection: socket.socket, request: Request, stdout: int, stderr: int) -> None:
    """Send a request, and duplicates of two descriptors for the run's output."""
    text = msgspec.json.encode(request)
    message = _LENGTH.pack(len(text)) + text
    sent = socket.send_fds(connection, [message[:PART]], [stdout, stderr])
    rest = message[sent:]
    # If nothing is left to send, the driver may have refused the request already. Then `sendall`
    # would fail even without bytes.
    if rest:
        connection.sendall(rest)


class Incoming:
    """A request that is being received."""

    def __init__(self) -> None:
        self._received = bytearray()
        self.descriptors: list[int] = []

    def receive(self, connection: socket.socket) -> Request | None:
        """Receive a part from a readable connection. Return the request when it is complete.

        Raise ConnectionError if the connection has ended, and ValueError if the message is not a
        request.
        """
        part, descriptors, _, _ = socket.recv_fds(connection, PART, _DESCRIPTORS)
        self.descriptors += descriptors
        if not part:
            raise ConnectionError("The client has ended the connection.")
        self._received += part
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > _LONGEST:
            raise ValueError(f"A request of {length} bytes is too long.")
        if len(self._received) < _LENGTH.size + length:
            return None
        if len(self.descriptors) != _DESCRIPTORS:
            raise ValueError("A request comes with two descriptors.")
        text = bytes(self._received[_LENGTH.size : _LENGTH.size + length])
        return msgspec.json.decode(text, type=Request)


def encode_reply(reply: Reply) -> bytes:
    """Return the line of a reply."""
    return msgspec.json.encode(reply) + b"\n"


def decode_reply(line: bytes) -> Reply:
    """Return the reply in a line."""
    return msgspec.json.decode(line, type=Reply)
