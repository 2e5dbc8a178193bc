ephemeral "svc_agent_identity" "run" {
  agent_name   = "terraform-run"
  platform     = "custom"
  capabilities = ["tools.manage", "tools.read"]
}

provider "svc" {
  alias     = "run"
  endpoints = ["https://node-1.example.org:8694"]
  jwt_token = ephemeral.svc_agent_identity.run.token
}
