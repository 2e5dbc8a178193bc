"""Calls a tool of an MCP server, each request with a separate token from the Trust Fabric."""

import argparse
import asyncio
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent.parent))

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from fabric import Bound, Refused


async def main(options) -> None:
    bound = Bound(options.credential, options.url, options.scope)
    try:
        async with (
            httpx2.AsyncClient(event_hooks=bound.hooks, trust_env=False) as http,
            Client(streamable_http_client(options.url, http_client=http)) as client,
        ):
            result = await client.call_tool("orders", {"city": options.city})
            print(result.content[0].text)
    except* MCPError:
        sys.exit(f"refused: {bound.refusal}")
    except* Refused as refused:
        sys.exit(f"refused: {refused.exceptions[0]}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", default="http://127.0.0.1:9001/mcp")
    options.add_argument("--credential", required=True, help="file with the source credential")
    options.add_argument("--scope", help="default: all that is granted")
    options.add_argument("--city", default="Dresden")
    asyncio.run(main(options.parse_args()))
