"""Calls an agent over A2A, each request with a separate token from the Trust Fabric."""

import argparse
import asyncio
import pathlib
import sys
from urllib.parse import urljoin

sys.path.append(str(pathlib.Path(__file__).parent.parent))

import httpx
from a2a.client import A2AClientError, ClientConfig, create_client
from a2a.helpers import get_stream_response_text, new_text_message
from a2a.types import Role, SendMessageRequest

from fabric import Bound, Refused


async def main(options) -> None:
    bound = Bound(options.credential, options.url, options.scope)
    message = SendMessageRequest(message=new_text_message(options.city, role=Role.ROLE_USER))
    async with httpx.AsyncClient(event_hooks=bound.hooks, trust_env=False) as http:
        # The card names the agent's address; the token is for the configured address and no other.
        agent = await create_client(urljoin(options.url, "/"), ClientConfig(streaming=False, httpx_client=http))
        try:
            async for part in agent.send_message(message):
                print(get_stream_response_text(part))
        except A2AClientError:
            sys.exit(f"refused: {bound.refusal}")
        except Refused as refused:
            sys.exit(f"refused: {refused}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", default="http://127.0.0.1:9003/rpc")
    options.add_argument("--credential", required=True, help="file with the source credential")
    options.add_argument("--scope", help="default: all that is granted")
    options.add_argument("--city", default="Dresden")
    asyncio.run(main(options.parse_args()))
