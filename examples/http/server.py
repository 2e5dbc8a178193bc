"""A plain HTTP tool, each call of which the Trust Fabric checks before it runs."""

import pathlib
import sys
from urllib.parse import urlsplit

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import guard


async def orders(request: Request) -> JSONResponse:
    """How many orders there are from a city."""
    city = (await request.json())["city"]
    return JSONResponse({"answer": f"{len(city)} orders from {city}", "caller": request.user.display_name})


def main() -> None:
    tool, port = guard.tool_of(__file__, __doc__)
    app = Starlette(routes=[Route(urlsplit(tool["resource_uri"]).path, orders, methods=["POST"])])
    # Around the whole application: a route that is added later is guarded too.
    guard.serve(guard.WholeBody(guard.Bearer(app, tool)), port)


if __name__ == "__main__":
    main()
