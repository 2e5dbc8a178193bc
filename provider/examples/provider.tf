terraform {
  required_providers {
    svc = {
      source = "registry.example/fabric/svc"
    }
  }
}

provider "svc" {
  endpoints        = ["https://node-1.example.org:8694", "https://node-2.example.org:8694"]
  ca_cert_file     = "ca.pem"
  client_cert_file = "terraform.pem"
  client_key_file  = "terraform-key.pem"
}
