"""Discovery by a client of the mcp SDK after a refusal, with the SDK's own code.

Reads {"url"} from standard input and prints the result.
"""

import asyncio
import json
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls, extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth, get_client_metadata_scopes, handle_protected_resource_response,
)
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth_utils import check_resource_allowed


async def main(url: str) -> dict:
    async with httpx2.AsyncClient(trust_env=False) as http:
        refused = await http.post(url, json={})
        place = extract_resource_metadata_from_www_auth(refused)
        scope = extract_scope_from_www_auth(refused)
        first = build_protected_resource_metadata_discovery_urls(place, url)[0]
        metadata = await handle_protected_resource_response(await http.get(first))
        exception = None
        try:
            async with Client(streamable_http_client(url, http_client=http)) as client:
                await client.call_tool("orders", {"city": "Dresden"})
        except* MCPError:
            exception = "MCPError"
    return {
        "status": refused.status_code,
        "resource_metadata": place,
        "scope": scope,
        "scopes_to_ask_for": get_client_metadata_scopes(scope, metadata),
        "authorization_servers": [str(server) for server in metadata.authorization_servers],
        "is_for_this_server": check_resource_allowed(url, str(metadata.resource)),
        "exception": exception,
    }


json.dump(asyncio.run(main(json.load(sys.stdin)["url"])), sys.stdout)
