"""How a state server proves its identity, before a program sends it the token.

The program sends a random number, and a proof that it knows the token. The server answers with a
card, which describes the server, and with a proof that is computed from the token, this number and
this card. Neither proof contains the token, and only a server with the token can answer.
"""

from __future__ import annotations

import hmac
import re
import secrets

import httpx
import msgspec

from sluice.errors import Refused, ServerHangs, StateError
from sluice.state.database import first_line
from sluice.state.remote.connection import SAME_TOKEN, client_options, server_token

SCHEME = "Challenge"
"""The scheme of a challenge's Authorization header."""
PROOF = "X-Sluice-Proof"
"""The name of the header with the server's proof, in the server's answer."""
_ANSWER_SECONDS = 5.0
_CHALLENGE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})")


class Card(msgspec.Struct, frozen=True):
    """A state server's description of itself."""

    host: str
    port: int
    """`host` and `port` are the server's address in the ledger."""
    database: str
    """The kind of database in which the server's shards are stored."""
    server: str
    """The identity of the server. It belongs to the folder or database of its shards, so a restart
    keeps it."""


def challenge_number(token: str, credentials: str) -> str | None:
    """Return the random number in a challenge's Authorization header.

    Return None if the sender lacks the token.
    """
    challenge = _CHALLENGE.fullmatch(credentials)
    if challenge is None:
        return None
    number, proof = challenge.groups()
    is_proved = hmac.compare_digest(_mac(token, "ask", number), proof)
    return number if is_proved else None


def proved_card(token: str, number: str, card: Card) -> tuple[bytes, str]:
    """Return a server's answer to a challenge: the card as JSON, and the proof."""
    content = msgspec.json.encode(card)
    return content, _mac(token, "answer", number, content.decode())


def fetch_card(url: str, address: str, *, verify_certificate: bool = True) -> Card:
    """Return the proved card of the state server at a URL. `address` names the server in errors.

    Raise StateError if no state server answers, and ServerHangs if the server accepts connections
    but does not answer. Raise Refused if the server does not know this process's token.
    """
    token, number = server_token(), secrets.token_hex(32)
    options = client_options(_ANSWER_SECONDS, verify_certificate=verify_certificate)
    options["headers"] = {"Authorization": f"{SCHEME} {number}.{_mac(token, 'ask', number)}"}
    try:
        with httpx.Client(**options) as client:
            response = client.get(url)
    except (httpx.ReadTimeout, httpx.WriteTimeout):
        raise ServerHangs(
            f"The state server at {address} accepts connections, but has not answered within "
            f"{_ANSWER_SECONDS:g} s."
        ) from None
    except httpx.HTTPError as error:
        raise _no_answer(address, error) from None
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise Refused(
            f"The state server at {address} rejected the token of this process.",
            next_step=SAME_TOKEN,
        )
    try:
        card = msgspec.json.decode(response.content, type=Card)
    except msgspec.DecodeError as error:
        raise _no_answer(address, error) from None
    expected = _mac(token, "answer", number, response.content.decode())
    if not hmac.compare_digest(response.headers.get(PROOF, "").encode(), expected.encode()):
        raise Refused(
            f"The server at {address} did not prove that it knows the token of the state servers.",
            next_step=SAME_TOKEN,
        )
    return card


def _no_answer(address: str, error: Exception) -> StateError:
    if _is_refused(error):
        reason = "no program listens at this port"
    elif isinstance(error, httpx.ConnectTimeout):
        reason = "its host does not answer, or a firewall is in between"
    else:
        reason = first_line(error).rstrip(".") or type(error).__name__
    return StateError(
        f"No state server answers at {address}: {reason}.",
        next_step="Check the address, and that the server runs. "
        "Pass --tls if the server has a certificate, and only then.",
    )


def _is_refused(error: BaseException | None) -> bool:
    """Return whether the host has refused a connection.

    The HTTP client raises its own error, with the system's error as its context.
    """
    return error is not None and (
        isinstance(error, ConnectionRefusedError) or _is_refused(error.__context__)
    )


def _mac(token: str, *parts: str) -> str:
    return hmac.digest(token.encode(), "\n".join(("sluice", *parts)).encode(), "sha256").hex()
