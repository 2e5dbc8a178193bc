terraform {
  required_version = ">= 1.11"

  required_providers {
    svc = {
      source = "registry.example/fabric/svc"
    }
  }
}

# TRUST_FABRIC_ENDPOINTS, TRUST_FABRIC_CA, TRUST_FABRIC_CERT and TRUST_FABRIC_KEY.
provider "svc" {}
