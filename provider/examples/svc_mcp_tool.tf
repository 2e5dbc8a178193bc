resource "svc_mcp_tool" "example" {
  tool_id               = "reports"
  name                  = "Reports"
  resource_uri          = "https://tools.example.org/reports"
  required_capabilities = ["db.read"]
  max_blast_radius      = "namespace:demo"
  version               = "1.2.0"
}
