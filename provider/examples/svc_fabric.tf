resource "svc_fabric" "example" {
  name = "main"

  spec = yamlencode({
    replicas    = 3
    issuer      = "https://trust.example.org"
    trustDomain = "trust.example.org"
    pki = {
      mode      = "certManagerCsi"
      issuerRef = { name = "trust-fabric" }
      clientCA  = { name = "callers", key = "ca.crt" }
      peerCA    = { name = "nodes", key = "ca.crt" }
    }
    storage = { size = "20Gi" }
    issuers = [{
      issuer       = "https://kubernetes.default.svc"
      subject      = "kubernetes"
      discovery    = true
      trustDomains = ["trust.example.org"]
    }]
  })
}

# The chart is a resource of the provider of Helm:
#
#   resource "helm_release" "fabric" {
#     name   = "trust-fabric"
#     chart  = "charts/trust-fabric"
#     values = [svc_fabric.example.values_yaml]
#   }
