"""An MCP server, each call of which the Trust Fabric checks before its tool runs."""

import pathlib
import sys
from urllib.parse import urlsplit

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

import fabric
import guard


class FabricVerifier(TokenVerifier):
    """The SDK hands over the token alone; the body comes from `guard.WholeBody`."""

    def __init__(self, tool: dict):
        self.fabric, self.tool = fabric.Fabric(), tool

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            caller = await self.fabric.verify(
                self.tool["tool_id"], "mcp", token, guard.body_of_call.get())
        except fabric.Refused as refused:
            # Without the required scopes the SDK returns 403 insufficient_scope; without a token, 401
            # invalid_token. If no scope is required, the former would admit the call.
            if refused.check == "capabilities" and self.tool["required_capabilities"]:
                return AccessToken(token=token, client_id="", scopes=[])
            return None
        # No `expires_at`: the broker has just verified it, with the clock that minted the token.
        return AccessToken(token=token, client_id=caller["subject"], subject=caller["subject"],
                           scopes=caller["capabilities"], claims={"iss": caller["issuer"]})


class NameScope:
    """Adds `scope` to the challenge: the MCP specification requires it, and the SDK omits it."""

    def __init__(self, app, scope: str):
        self.app, self.said = app, f', scope="{scope}"'.encode()

    async def __call__(self, scope, receive, send) -> None:
        async def named(message):
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, value + self.said if name == b"www-authenticate" else value)
                    for name, value in message["headers"]]
            await send(message)

        await self.app(scope, receive, named)


def main() -> None:
    tool, port = guard.tool_of(__file__, __doc__)
    server = MCPServer("reports", token_verifier=FabricVerifier(tool), auth=AuthSettings(
        issuer_url=fabric.issuer(),
        resource_server_url=tool["resource_uri"],
        required_scopes=tool["required_capabilities"],
        # The fourth check is on the audience, byte for byte.
        validate_token_resource=False,
    ))

    @server.tool()
    def orders(city: str) -> str:
        """How many orders there are from a city."""
        return f"{len(city)} orders from {city}"

    app = server.streamable_http_app(streamable_http_path=urlsplit(tool["resource_uri"]).path)
    # The last one added is the first to see a request. Added to the application, not around it, they run
    # inside the handler that returns 500 for an exception.
    app.add_middleware(NameScope, scope=" ".join(tool["required_capabilities"]))
    app.add_middleware(guard.WholeBody)
    guard.serve(app, port)


if __name__ == "__main__":
    main()
