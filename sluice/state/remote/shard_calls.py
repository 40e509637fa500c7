"""The calls of a shard over HTTP, derived from the methods of `Shard`.

`RemoteShard` sends a method's arguments as a MessagePack array to the path `calls/METHOD` of the
shard. The state server decodes the array to the types in the method's signature, so the method gets
only arguments of these types. The server sends the result back as MessagePack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from sluice.errors import StateError
from sluice.state.shard.row_columns import RowIds
from sluice.state.shard.shard import DigestSum, Shard

PROTOCOL = "1"
"""The version of these calls. Increase it with every change of a method of `Shard` or of its types,
so that processes of different versions of Sluice do not misunderstand each other."""
PROTOCOL_HEADER = "Sluice-Shard-Protocol"
"""The header of requests and responses that has the sender's version."""


class OtherVersion(StateError):
    """The other process has another version of the calls."""

    next_step = "Install the same version of Sluice on all hosts, and restart the state servers."

    def __init__(self) -> None:
        super().__init__(
            "The state server and the program that calls it have different versions of Sluice."
        )


@dataclass(frozen=True)
class ShardCall:
    """How a method of `Shard` is called over HTTP."""

    name: str
    takes_rows: bool
    """Whether an argument is a list. If so, the arguments may be as large as a batch."""
    arguments: msgspec.msgpack.Decoder[tuple[Any, ...]]
    result: msgspec.msgpack.Decoder[Any]
    _signature: inspect.Signature
    _parameters: tuple[_Parameter, ...]

    @classmethod
    def of(cls, method: Callable[..., Any]) -> ShardCall:
        """Derive the call from a method of `Shard`."""
        signature = inspect.signature(method)
        types = get_type_hints(method, include_extras=True)
        parameters: list[_Parameter] = []
        for name in signature.parameters:
            if name != "self":
                parameters.append(_Parameter(name, types[name]))
        has_list = any(parameter.is_list for parameter in parameters)
        sent_types = tuple(parameter.sent_type for parameter in parameters)
        return cls(
            method.__name__,
            has_list,
            msgspec.msgpack.Decoder(tuple[sent_types]),  # type: ignore[valid-type]
            msgspec.msgpack.Decoder(types["return"]),
            signature,
            tuple(parameters),
        )

    def encode_arguments(self, shard: Shard, *arguments: Any, **named: Any) -> bytes:
        """Encode the arguments of a call of the method."""
        bound = self._signature.bind(shard, *arguments, **named)
        bound.apply_defaults()
        sent: list[Any] = []
        # The order matters: a digest sum is known only after the pages before it have been taken.
        for parameter in self._parameters:
            sent.append(parameter.send(bound.arguments[parameter.name]))
        return msgspec.msgpack.encode(sent)

    def decode_arguments(self, content: bytes) -> dict[str, Any]:
        """Decode the arguments by name. Raise DecodeError unless they have the method's types."""
        arguments: dict[str, Any] = {}
        received = self.arguments.decode(content)
        for parameter, value in zip(self._parameters, received, strict=True):
            arguments[parameter.name] = parameter.receive(value)
        return arguments

    def execute(self, shard: Shard, arguments: Mapping[str, Any]) -> bytes:
        """Call the method of a shard with decoded arguments, and encode its result."""
        return msgspec.msgpack.encode(getattr(shard, self.name)(**arguments))

    def decode_result(self, content: bytes) -> Any:
        """Decode the result of `execute`. Raise DecodeError unless it has the method's type."""
        return self.result.decode(content)


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a method of `Shard`, whose arguments are sent."""

    name: str
    type: Any

    @property
    def is_list(self) -> bool:
        return self.type is RowIds or get_origin(self.type) in (Iterable, Sequence)

    @property
    def sent_type(self) -> Any:
        """The type in which an argument is sent."""
        if self.type == DigestSum:
            return _SentDigestSum
        if get_origin(self.type) is Iterable:
            return list[get_args(self.type)]  # type: ignore[misc]
        return self.type

    def send(self, argument: Any) -> Any:
        """Return an argument as the value that is sent."""
        origin = get_origin(self.type)
        if self.type == DigestSum and argument is not None:
            # Checksums are sums modulo 2**64, and MessagePack has no larger numbers.
            return argument() % 2**64
        if origin in (Iterable, Sequence):
            return list(argument)
        if origin is Mapping:
            return dict(argument)
        return argument

    def receive(self, sent: Any) -> Any:
        """Return the argument from the value that was sent."""
        if self.type == DigestSum and sent is not None:
            return lambda: sent
        return sent


_SentDigestSum = Annotated[int, msgspec.Meta(ge=0)] | None


def _derive_calls() -> dict[str, ShardCall]:
    calls: dict[str, ShardCall] = {}
    for name, method in vars(Shard).items():
        if inspect.isfunction(method) and not name.startswith("_") and name != "close":
            calls[name] = ShardCall.of(method)
    return calls


CALLS = _derive_calls()
"""The name of each method of `Shard` that uses the shard's database → its call."""
