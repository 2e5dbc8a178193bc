"""Calls a plain HTTP tool with a token from the Trust Fabric that is good for this one request."""

import argparse
import asyncio
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent.parent))

import httpx2

from fabric import Bound, Refused


async def main(options) -> None:
    bound = Bound(options.credential, options.url, options.scope)
    async with httpx2.AsyncClient(event_hooks=bound.hooks, trust_env=False) as http:
        try:
            answer = await http.post(options.url, json={"city": options.city})
        except Refused as refused:
            sys.exit(f"refused: {refused}")
        if answer.is_error:
            sys.exit(f"refused: {bound.refusal}")
        print(answer.json()["answer"])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", default="http://127.0.0.1:9002/query")
    options.add_argument("--credential", required=True, help="file with the source credential")
    options.add_argument("--scope", help="default: all that is granted")
    options.add_argument("--city", default="Dresden")
    asyncio.run(main(options.parse_args()))
