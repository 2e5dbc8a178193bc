variable "credential" {
  type      = string
  ephemeral = true
  sensitive = true
}

ephemeral "svc_token" "example" {
  subject_token = var.credential
  audience      = "https://tools.example.org/reports"
  execution_scope = {
    htm = "POST"
    htu = "https://tools.example.org/reports"
  }
}
