resource "svc_agent_identity" "agent" {
  agent_name   = "planner"
  platform     = "mcp"
  capabilities = ["db.read"]
}

ephemeral "svc_agent_token" "example" {
  agent_id = svc_agent_identity.agent.agent_id
}
