resource "svc_ssf_stream" "receiver" {
  audience         = "https://receiver.example.org"
  events_requested = ["https://schemas.openid.net/secevent/caep/event-type/session-revoked"]
  delivery_method  = "poll"
}

output "poll_url" {
  value = svc_ssf_stream.receiver.poll_url
}
