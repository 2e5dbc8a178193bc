"""An agent that speaks A2A 1.0, each call of which the Trust Fabric checks before it answers."""

import pathlib
import sys
from urllib.parse import urlsplit

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    AgentCapabilities, AgentCard, AgentInterface, AgentSkill, HTTPAuthSecurityScheme, SecurityRequirement,
    SecurityScheme, StringList,
)
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.applications import Starlette

import guard


class Orders(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        city = context.get_user_input()
        # The guard has set the caller in `context.call_context.user`.
        await event_queue.enqueue_event(new_text_message(f"{len(city)} orders from {city}"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def card_of(tool: dict) -> AgentCard:
    """The public agent card, which requires a bearer token."""
    skill = AgentSkill(id="orders", name="Orders", description="How many orders there are from a city",
                       tags=["orders"])
    bearer = HTTPAuthSecurityScheme(scheme="Bearer", bearer_format="JWT",
                                    description="A token of the Trust Fabric, bound to the request")
    return AgentCard(
        name="Orders", description=tool["name"], version="1.0.0", skills=[skill],
        supported_interfaces=[AgentInterface(
            url=tool["resource_uri"], protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        security_schemes={"fabric": SecurityScheme(http_auth_security_scheme=bearer)},
        security_requirements=[SecurityRequirement(
            schemes={"fabric": StringList(list=tool["required_capabilities"])})],
    )


def main() -> None:
    tool, port = guard.tool_of(__file__, __doc__)
    card = card_of(tool)
    handler = DefaultRequestHandler(
        agent_executor=Orders(), task_store=InMemoryTaskStore(), agent_card=card)
    app = Starlette(routes=[
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, urlsplit(tool["resource_uri"]).path),
    ])
    # Clients without a token read the card.
    guard.serve(guard.WholeBody(guard.Bearer(app, tool, public=(AGENT_CARD_WELL_KNOWN_PATH,))), port)


if __name__ == "__main__":
    main()
