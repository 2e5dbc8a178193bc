//! Forged callers: certificates, headers of proxies that do not exist, bearer tokens.

use std::fs;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{AttackContext, Outcome};
use crate::certificates::{self, TRUST_DOMAIN};
use crate::wire::Target;

/// Expected status for an anonymous request to a protected route: the plain listener serves only public
/// routes (contract §1), the TLS listener requires credentials.
fn refusal(listener: &str) -> [u16; 1] {
    if listener == "plain" { [403] } else { [401] }
}

/// A sample of invalid certificates, and no certificate, on every protected route.
pub async fn certificates(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (listener, target) in field.node.anonymous() {
        for route in field.routes.iter().filter(|route| !route.public) {
            let what = format!("no certificate, {listener}, {} {}", route.method, route.path);
            call(
                &mut outcome,
                &what,
                &target,
                &route.request(&route.path, &target.host, ""),
                &refusal(listener),
            )
            .await;
        }
    }
    let Some(https) = &field.node.https else { return Ok(outcome) };
    for (name, identity) in certificates::bad(&field.node.pki())? {
        let tls = certificates::client(&field.node.pki(), Some(&identity), b"http/1.1")?;
        let target = Target { tls: Some(tls), ..https.clone() };
        for route in field.routes.iter().filter(|route| !route.public) {
            let what = format!("{name}, {} {}", route.method, route.path);
            // A refusal in the handshake appears as a closed connection.
            call(&mut outcome, &what, &target, &route.request(&route.path, &target.host, ""), &[0]).await;
        }
    }
    Ok(outcome)
}

/// Headers that only a trusted proxy may set, on every protected route of both listeners.
pub async fn headers(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let headers = spoofed(field)?;
    for (listener, target) in field.node.anonymous() {
        for route in field.routes.iter().filter(|route| !route.public) {
            for header in &headers {
                let name = header.split(':').next().unwrap_or_default();
                let what = format!("{name}, {listener}, {} {}", route.method, route.path);
                let request = route.request(&route.path, &target.host, &format!("{header}\r\n"));
                // An invalid header (an underscore may be refused) is refused as such.
                let expected = [refusal(listener)[0], 400];
                call(&mut outcome, &what, &target, &request, &expected).await;
            }
        }
    }
    Ok(outcome)
}

/// Invalid bearer tokens on every protected route.
pub async fn bearers(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let bearers = field.node.issuer.bad_bearers(&field.minted)?;
    for (listener, target) in field.node.anonymous() {
        for route in field.routes.iter().filter(|route| !route.public) {
            for (name, bearer) in &bearers {
                for scheme in ["Bearer", "bearer", "DPoP", "Basic"] {
                    let what = format!("{scheme} {name}, {listener}, {} {}", route.method, route.path);
                    let header = format!("authorization: {scheme} {bearer}\r\n");
                    let request = route.request(&route.path, &target.host, &header);
                    call(&mut outcome, &what, &target, &request, &refusal(listener)).await;
                }
            }
        }
    }
    Ok(outcome)
}

async fn call(outcome: &mut Outcome, what: &str, target: &Target, request: &[u8], expected: &[u16]) {
    let status = target.call(request).await.map_or(0, |answer| answer.status);
    outcome.must_refuse(what, status, expected);
}

/// Proxy headers that name the operator as the caller.
fn spoofed(field: &AttackContext<'_>) -> Result<Vec<String>> {
    let operator = format!("spiffe://{TRUST_DOMAIN}/operator");
    let pem = fs::read_to_string(field.node.pki().join("operator.pem"))?;
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let escaped = pem.replace('\n', "%0A").replace('+', "%2B").replace(' ', "%20");
    let envoy =
        format!("By=spiffe://{TRUST_DOMAIN}/node;Hash={};URI={operator};Cert=\"{escaped}\"", "ab".repeat(32));
    let structured = format!(":{base64}:");
    let name = STANDARD.encode(&operator);
    let mut headers = Vec::new();
    for (names, value) in [
        ("X-Forwarded-Client-Cert X-Forwarded-Tls-Client-Cert XFCC", &envoy),
        ("Client-Cert client_cert Client-Cert-Chain", &structured),
        ("X-Client-Cert X-SSL-Client-Cert ssl-client-cert SSL_CLIENT_CERT X-ARR-ClientCert", &escaped),
        (
            "ssl-client-subject-dn X-SSL-Client-DN ssl-client-verify X-Client-Verify X-SSL-Client-Verify",
            &operator,
        ),
        ("X-Spiffe-Id X-Forwarded-User X-Remote-User X-Caller Tailscale-User-Login X-Client-Id", &operator),
        ("x_forwarded_client_cert X_FORWARDED_CLIENT_CERT x-forwarded_client-cert", &envoy),
        ("X-Peer-Identity-B64", &name),
    ] {
        headers.extend(names.split(' ').map(|name| format!("{name}: {value}")));
    }
    for header in [
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-For: 127.0.0.1, 127.0.0.1, 10.0.0.1",
        "X-Real-IP: 127.0.0.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Port: 8694",
        "Forwarded: for=127.0.0.1;proto=https;by=127.0.0.1",
        "Forwarded: for=\"[::1]\";host=localhost",
        "Via: 1.1 trusted",
        "Connection: x-forwarded-for, authorization, client-cert",
    ] {
        headers.push(header.to_owned());
    }
    Ok(headers)
}
