# A connection as a worker shows it.

from __future__ import annotations

from gateway.channel import ConnectionInfo


def shown(peer: str = "10.0.0.1:5", **other: object) -> ConnectionInfo:
    fields = {
        "peer": peer, "broker": 1, "principal": "User:a", "client_id": "c", "software": "", "age_s": 1.0,
        "idle_s": 0.0, "in_flight": 0, "muted_s": 0.0, "why": "", "id": "",
    }  # fmt: skip
    return ConnectionInfo(**{**fields, **other})  # type: ignore[arg-type]
