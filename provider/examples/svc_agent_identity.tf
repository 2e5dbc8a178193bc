resource "svc_agent_identity" "example" {
  agent_name       = "planner"
  platform         = "mcp"
  capabilities     = ["db.read"]
  max_blast_radius = "namespace:demo"
  rotate_before    = "168h"

  lifecycle {
    create_before_destroy = true
  }
}
