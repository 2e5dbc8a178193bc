"""Middleware for a tool server of any protocol (ASGI): reads the body, then verifies the call."""

import argparse
import contextvars
import json
import pathlib
import socket
from urllib.parse import urlsplit

import uvicorn
from starlette.authentication import AuthCredentials, SimpleUser

import fabric

BODY_BYTES_MAX = 1 << 20

# The body of the current request, for code that has only the token.
body_of_call = contextvars.ContextVar("body_of_call")


async def answer(send, status: int, document: dict, headers=()) -> None:
    body = json.dumps(document).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    fields += [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


class WholeBody:
    """Reads the whole body before the application runs, because the hash covers all of it. Without a
    verdict the response is 503, never a result of the tool."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"nobody checks {scope['type']} connections")
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > BODY_BYTES_MAX:
                return await answer(send, 413, {"error": "invalid_request"})
            if not message.get("more_body"):
                break
        body_of_call.set(body)
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def again():
            return unread.pop() if unread else await receive()

        try:
            await self.app(scope, again, send)
        except fabric.Unavailable:
            await answer(send, 503, {"error": "temporarily_unavailable"}, [("retry-after", "1")])


class Bearer:
    """A protected resource (RFC 6750, RFC 9728) in front of `app`: every path outside `public` needs a token."""

    def __init__(self, app, tool: dict, public: tuple[str, ...] = ()):
        self.app, self.tool, self.public = app, tool, public
        self.fabric, self.scope = fabric.Fabric(), " ".join(tool["required_capabilities"])
        place = urlsplit(tool["resource_uri"])
        # RFC 9728 §3.1: between host and path.
        self.metadata_path = "/.well-known/oauth-protected-resource" + place.path.rstrip("/")
        self.metadata_url = f"{place.scheme}://{place.netloc}{self.metadata_path}"
        self.metadata = {
            "resource": tool["resource_uri"],
            "authorization_servers": [fabric.issuer()],
            "scopes_supported": tool["required_capabilities"],
            "bearer_methods_supported": ["header"],
        }

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self.public:
            return await self.app(scope, receive, send)
        if scope["path"] == self.metadata_path:
            return await answer(send, 200, self.metadata)
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not token:
            return await self.challenge(send, 401)
        try:
            verdict = await self.fabric.verify(
                self.tool["tool_id"], self.tool["protocols"][0], token, body_of_call.get())
        except fabric.Refused as refused:
            # RFC 6750 §3.1: 403 for a token that lacks a scope; else 401, because only another token for this
            # request may help.
            if refused.check == "capabilities":
                return await self.challenge(send, 403, "insufficient_scope", str(refused))
            return await self.challenge(send, 401, "invalid_token", str(refused))
        # Read by frameworks: `request.user`, `request.auth`.
        scope["user"], scope["auth"] = SimpleUser(verdict["subject"]), AuthCredentials(verdict["capabilities"])
        return await self.app(scope, receive, send)

    async def challenge(self, send, status: int, error: str = "", description: str = "") -> None:
        # RFC 6750 §3.1: without a token there is no error code.
        said = {"error": error, "error_description": description} if error else {}
        fields = said | {"scope": self.scope, "resource_metadata": self.metadata_url}
        challenge = "Bearer " + ", ".join(f'{name}="{value}"' for name, value in fields.items())
        await answer(send, status, said, [("www-authenticate", challenge)])


def tool_of(program: str, description: str) -> tuple[dict, int]:
    """The entry that is registered for this server, and the port to listen on, from the command line."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--tool", default=pathlib.Path(program).with_name("tool.json"), type=pathlib.Path)
    options.add_argument("--port", type=int, help="default: that of resource_uri; 0 takes a free one")
    chosen = options.parse_args()
    tool = json.loads(chosen.tool.read_text())
    return tool, urlsplit(tool["resource_uri"]).port if chosen.port is None else chosen.port


def serve(app, port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    print("listening on port", listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
