resource "svc_fabric" "example" {
  name      = "main"
  namespace = "fabric"

  spec = yamlencode({
    replicas    = 3
    issuer      = "https://trust.example.org"
    trustDomain = "trust.example.org"
    pki = {
      mode          = "certManagerCsi"
      issuerRef     = { name = "fabric" }
      peerIssuerRef = { name = "fabric-peers" }
      clientCA      = { name = "callers-ca", key = "ca.crt" }
      peerCA        = { name = "fabric-peers-ca", key = "ca.crt" }
    }
    storage = { size = "20Gi" }
    callers = [{
      id           = "spiffe://trust.example.org/ns/gateway/sa/gateway"
      capabilities = ["exchange"]
    }]
    issuers = [{
      issuer       = "https://kubernetes.example.org"
      subject      = "kubernetes"
      discovery    = true
      trustDomains = ["trust.example.org"]
    }]
  })
}

# The chart is a resource of the provider of Helm. deploy.yaml has `deploy` of the chart's values: the repository of the
# image, the clients, and the networks of the issuers (docs/guide/terraform.md).
#
#   resource "helm_release" "fabric" {
#     name      = "fabric"
#     namespace = "fabric"
#     chart     = "charts/trust-fabric"
#     values    = [svc_fabric.example.values_yaml, file("deploy.yaml")]
#   }
