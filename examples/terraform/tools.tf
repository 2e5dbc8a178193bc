resource "svc_mcp_tool" "reports" {
  tool_id               = "reports"
  name                  = "Reports"
  resource_uri          = "https://tools.example.org/reports"
  required_capabilities = ["db.read"]
  max_blast_radius      = "namespace:demo"
}
