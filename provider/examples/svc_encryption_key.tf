resource "svc_agent_identity" "receiver" {
  agent_name   = "receiver"
  platform     = "mcp"
  capabilities = ["db.read"]
}

ephemeral "svc_agent_token" "receiver" {
  agent_id = svc_agent_identity.receiver.agent_id
}

resource "svc_encryption_key" "example" {
  workload_id = svc_agent_identity.receiver.agent_id
  agent_token = ephemeral.svc_agent_token.receiver.token
  public_key = jsonencode({
    kty = "OKP"
    crv = "X25519"
    x   = "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"
  })
}
