"""Check windowed keys where streams and tables are joined, merged, stored or written to a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sluice.errors import TopologyError
from sluice.topology import nodes
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windowed_keys import session_windowed_bytes, time_windowed_bytes, windowed_json
from sluice.values.windows import AnyWindow, CustomWindow, SessionWindow

_MAKE_PLAIN = 'Make a plain key first, for example with to_stream().select_key("_key").'


def require_same_windows(where: str, inputs: Iterable[nodes.Node]) -> None:
    """Raise TopologyError if some keys have other windows than the others, or no windows."""
    first, *others = inputs
    window = first.key_window
    for other in others:
        other_window = other.key_window
        if (window is None) != (other_window is None):
            windowed = other if window is None else first
            raise TopologyError(
                f"{where}: the keys of {nodes.known_name(windowed)} have windows, "
                "and the other keys do not.",
                next_step=_MAKE_PLAIN,
            )
        if (
            window is not None
            and other_window is not None
            and _bounds(window) != _bounds(other_window)
        ):
            raise TopologyError(
                f"{where}: the keys have the windows {window} and {other_window}, "
                "so they are never equal.",
                next_step="Use windows of the same kind and size.",
            )


def _bounds(window: AnyWindow) -> tuple[object, ...]:
    """Return the properties that must be equal for two definitions to have equal windows."""
    kind = type(window)
    # Ignore advance and grace, because a hopping window can have the bounds of a tumbling window.
    # Ignore the gaps of sessions, because sessions with different gaps can have the same bounds;
    # their `size_ms` is None.
    if isinstance(window, CalendarWindow | CustomWindow):
        return kind, replace(window, grace_ms=0)
    return kind, window.size_ms


def require_plain_keys(where: str, inputs: Iterable[nodes.Node]) -> None:
    """Raise TopologyError if the keys of an input have windows."""
    for node in inputs:
        if node.key_window is not None:
            raise TopologyError(
                f"{where}: the keys of {nodes.known_name(node)} have windows.",
                next_step=_MAKE_PLAIN,
            )


def require_encodable_windows(
    where: str, encode_key: Callable[..., bytes] | None, node: nodes.Node
) -> None:
    """Raise TopologyError if `encode_key` is for windowed keys, and the node's keys do not fit."""
    window = node.key_window
    if window is None and encode_key in (
        windowed_json,
        time_windowed_bytes,
        session_windowed_bytes,
    ):
        raise TopologyError(
            f"{where}: the keys of {nodes.known_name(node)} have no windows.",
            next_step="Leave key= out.",
        )
    for wrong, right in (
        (time_windowed_bytes, session_windowed_bytes),
        (session_windowed_bytes, time_windowed_bytes),
    ):
        if encode_key is wrong and isinstance(window, SessionWindow) is (
            wrong is time_windowed_bytes
        ):
            raise TopologyError(
                f"{where}: {wrong.__name__} does not fit the window {window}.",
                next_step=f"Use {right.__name__}, as consumers do for this kind of window.",
            )
