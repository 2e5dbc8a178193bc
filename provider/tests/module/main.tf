# A module as a user writes one, with its own tests (tests/tool.tftest.hcl).

terraform {
  required_providers {
    svc = { source = "registry.example/fabric/svc" }
  }
}

variable "endpoints" {
  type = list(string)
}

variable "pki" {
  type = string
}

variable "team" {
  type    = string
  default = "reports"
}

provider "svc" {
  endpoints        = var.endpoints
  ca_cert_file     = "${var.pki}/ca.pem"
  client_cert_file = "${var.pki}/terraform.pem"
  client_key_file  = "${var.pki}/terraform-key.pem"
}

resource "svc_mcp_tool" "this" {
  tool_id               = "${var.team}-tool"
  name                  = "Tool of ${var.team}"
  required_capabilities = ["db.read"]
}

output "tool_id" {
  value = svc_mcp_tool.this.id
}
