# An agent ends 30 days after its issue. A plan in the last week of its life replaces it: the successor is issued first,
# so that everything that refers to agent_id changes over before the old agent is revoked.
resource "svc_agent_identity" "rotated" {
  agent_name    = "reporter"
  platform      = "mcp"
  capabilities  = ["db.read"]
  rotate_before = "168h"

  lifecycle {
    create_before_destroy = true
  }
}

output "rotated" {
  value = svc_agent_identity.rotated.agent_id
}
