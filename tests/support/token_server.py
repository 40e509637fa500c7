"""An OAuth server on loopback: it issues tokens to one client, and publishes the key they are signed with."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from sluice.local.broker import EmbeddedKafka
from tests.support.ports import free_port

CLIENT_ID, CLIENT_SECRET = "sluice", "secret-of-the-client"
ISSUER, AUDIENCE = "https://issuer.example", "kafka"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_CHECK = "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


class TokenServer:
    """The server. Its attributes change how it answers the next requests."""

    def __init__(self, certificate: Path | None = None) -> None:
        """`certificate`: a file with certificate and key, for a server with TLS."""
        self._certificate = certificate
        self.port = free_port()
        self.lifetime_s = 3_600
        """The lifetime of new tokens, in seconds; negative for tokens that have expired."""
        self.delay_s = 0.0
        self.moved_to = ""
        """The address to which requests for tokens are redirected; empty for none."""
        self.is_revoked = False
        """Whether the client's credentials have been revoked."""
        self.body: bytes | None = None
        """The body of all answers for tokens; None for the right one."""
        self.gets = 0
        self.requests = 0
        """The number of requests for tokens."""
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self._server: ThreadingHTTPServer | None = None

    @property
    def token_url(self) -> str:
        scheme = "https" if self._certificate else "http"
        return f"{scheme}://127.0.0.1:{self.port}/token"

    @property
    def keys_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen at the port."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.gets += 1
                server._answer(self, 200, server._keys())

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                server.requests += 1
                time.sleep(server.delay_s)
                if server.moved_to:
                    self.send_response(302)
                    self.send_header("Location", server.moved_to)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif server._knows(self.headers.get("Authorization", ""), parse_qs(form)):
                    answer = {
                        "access_token": server.token(),
                        "token_type": "Bearer",
                        "expires_in": server.lifetime_s,
                    }
                    server._answer(self, 200, answer)
                else:
                    server._answer(self, 401, {"error": "invalid_client"})

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        if self._certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse all connections during the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def token(self, subject: str = CLIENT_ID) -> str:
        """Return a signed token."""
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "scope": "kafka",
            "iat": now + min(self.lifetime_s, 0) - 1,
            "exp": now + self.lifetime_s,
        }
        return jwt.encode(claims, self._key, "RS256", {"kid": "of-the-test"})

    def _keys(self) -> Mapping[str, Any]:
        key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        return {"keys": [key | {"kid": "of-the-test", "alg": "RS256", "use": "sig"}]}

    def _knows(self, header: str, form: Mapping[str, list[str]]) -> bool:
        name, secret = form.get("client_id", [""])[0], form.get("client_secret", [""])[0]
        if header.startswith("Basic "):
            name, _, secret = base64.b64decode(header[6:]).decode().partition(":")
        return (name, secret) == (CLIENT_ID, CLIENT_SECRET) and not self.is_revoked

    def _answer(
        self, handler: BaseHTTPRequestHandler, status: int, body: Mapping[str, Any]
    ) -> None:
        encoded = json.dumps(body).encode()
        if "access_token" in body and self.body is not None:
            encoded = self.body
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(encoded)))
            handler.end_headers()
            handler.wfile.write(encoded)
        except OSError:
            # A client that waits for a slow answer may have given up.
            pass

    def client_settings(self, port: int) -> dict[str, str]:
        """Return the settings of a client of a broker with `broker_config`."""
        return {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
            "log_level": "0",
        }

    def broker_config(self, port: int) -> dict[str, str]:
        """Return the configuration of a broker that asks for tokens at a port, in addition to its open one."""
        listener = f"SASL_PLAINTEXT://127.0.0.1:{port}"
        of_mechanism = "listener.name.sasl_plaintext.oauthbearer"
        return {
            "listeners": listener,
            "advertised.listeners": listener,
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{of_mechanism}.sasl.jaas.config": _LOGIN,
            f"{of_mechanism}.sasl.server.callback.handler.class": _VALIDATOR,
            # The default of Kafka 4.1 checks neither the signature nor the audience of a token.
            "sasl.oauthbearer.jwt.validator.class": _CHECK,
            "sasl.oauthbearer.jwks.endpoint.url": self.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            # The broker closes connections whose token has expired.
            f"{of_mechanism}.connections.max.reauth.ms": "3600000",
        }


@contextmanager
def oauth_broker(tokens: TokenServer, folder: Any, port: int) -> Iterator[EmbeddedKafka]:
    """Run a broker that asks for the server's tokens at a port."""
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAVA_TOOL_OPTIONS", f"{allowed}{tokens.keys_url}")
        broker = EmbeddedKafka(folder, config=tokens.broker_config(port))
        broker.start()
    try:
        yield broker
    finally:
        broker.stop()
