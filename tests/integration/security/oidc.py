# An issuer of tokens on loopback: its keys (JWKS), and tokens for who asks with a client id and any secret.

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"
LASTS_S = 60.0


class Issuer:
    """`asked`: what clients sent to the token endpoint, as they sent it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self._number = 0
        self.renew()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(issuer.jwks())

            def do_POST(self) -> None:
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                name, _, secret = base64.b64decode(self.headers["Authorization"].split()[1]).decode().partition(":")
                name = urllib.parse.unquote(name)
                issuer.asked.append({key: values[0] for key, values in form.items()} | {"id": name, "secret": secret})
                token = issuer.token(name, LASTS_S)
                self._say({"access_token": token, "token_type": "Bearer", "expires_in": int(LASTS_S)})

            def _say(self, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing of it is interesting."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/keys"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def renew(self) -> None:
        """Sign with a new key from now on; the former one is forgotten."""
        self._number += 1
        self._key = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> dict[str, Any]:
        row = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        return {"keys": [{**row, "kid": f"key-{self._number}", "use": "sig", "alg": "ES256"}]}

    def token(self, name: str, lasts_s: float = LASTS_S, **claims: Any) -> str:
        now = time.time()
        own = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "iat": int(now), "exp": now + lasts_s, **claims}
        return jwt.encode(own, self._key, "ES256", headers={"kid": f"key-{self._number}"})

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
