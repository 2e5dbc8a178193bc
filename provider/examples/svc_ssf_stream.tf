resource "svc_ssf_stream" "example" {
  audience         = "https://receiver.example.org"
  events_requested = ["https://schemas.openid.net/secevent/caep/event-type/session-revoked"]
  delivery_method  = "poll"
}
