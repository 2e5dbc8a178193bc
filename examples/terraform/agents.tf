resource "svc_agent_identity" "planner" {
  agent_name       = "planner"
  platform         = "mcp"
  capabilities     = ["db.read"]
  delegation_depth = 1
}

# Revoked with its parent.
resource "svc_agent_identity" "worker" {
  agent_name   = "worker"
  platform     = "mcp"
  capabilities = ["db.read"]
  on_behalf_of = svc_agent_identity.planner.agent_id
}

# In neither plan nor state.
ephemeral "svc_agent_token" "planner" {
  agent_id = svc_agent_identity.planner.agent_id
}

variable "public_key" {
  description = "The key with which others encrypt to the planner, a JWK. Its private part stays with the planner."
  type        = string
}

resource "svc_encryption_key" "planner" {
  workload_id = svc_agent_identity.planner.agent_id
  agent_token = ephemeral.svc_agent_token.planner.token
  public_key  = var.public_key
}

output "planner" {
  value = svc_agent_identity.planner.agent_id
}
