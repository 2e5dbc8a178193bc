//! The configuration of the provider: its table, its rules, and the access to the fabric that it describes.
//!
//! An attribute that is null comes from the environment. A certificate and its key come from the same source.

use std::path::PathBuf;
use std::time::Duration;

use trust_fabric_client::{self as client, Certificates, NodeClient, Pem};

use crate::cluster::{Certificate, Cluster, Token};
use crate::diagnostic::Diagnostic;
use crate::schema::{Attribute, Table, Type};
use crate::value::{Object, Value};
use crate::{duration, identity, kubernetes, limits, rules};

/// The configuration of the provider.
pub static TABLE: Table = Table {
    name: "svc",
    summary: "Manages objects of a Trust Fabric cluster over its HTTP API.",
    attributes: &[
        Attribute::optional(
            "endpoint",
            Type::Text,
            "One node, for example `https://fabric.example.org:8694`. Not together with `endpoints`.",
        ),
        Attribute::optional(
            "endpoints",
            Type::Texts,
            "Several nodes of one cluster, in order of preference. Otherwise `TRUST_FABRIC_ENDPOINTS`, separated by \
             commas.",
        )
        .members(1, client::limits::ENDPOINTS_MAX),
        Attribute::optional("ca_cert", Type::Text, "The only trusted CAs, in PEM. Not together with `ca_cert_file`."),
        Attribute::optional("ca_cert_file", Type::Text, "The same as a file. Otherwise `TRUST_FABRIC_CA`."),
        Attribute::optional(
            "client_cert",
            Type::Text,
            "Client certificate with its intermediates, in PEM. Not together with `client_cert_file`.",
        ),
        Attribute::optional("client_cert_file", Type::Text, "The same as a file. Otherwise `TRUST_FABRIC_CERT`."),
        Attribute::optional(
            "client_key",
            Type::Text,
            "Private key of the certificate, in PEM. Not together with `client_key_file`.",
        )
        .sensitive(),
        Attribute::optional("client_key_file", Type::Text, "The same as a file. Otherwise `TRUST_FABRIC_KEY`."),
        Attribute::optional(
            "jwt_token",
            Type::Text,
            "Bearer token of this fabric, with the fabric as its audience. Accepts ephemeral values. Not together with \
             `jwt_token_file`. Otherwise `TRUST_FABRIC_TOKEN`.",
        )
        .sensitive(),
        Attribute::optional(
            "jwt_token_file",
            Type::Text,
            "File of the bearer token, read for each request, because platforms replace it.",
        ),
        Attribute::optional("request_timeout", Type::Text, "Timeout of one HTTP request; the default is `20s`.")
            .rule(rules::duration),
        kubernetes::settings::NAMESPACE.rule(rules::namespace),
        kubernetes::settings::KUBERNETES,
    ],
    import: None,
    example: include_str!("../examples/provider.tf"),
    notes: include_str!("../examples/provider.md"),
};

/// The access to the fabric that the configuration gives.
#[derive(Debug)]
pub enum Access {
    /// This attribute becomes known only while other resources are applied.
    NotKnown(&'static str),
    NoEndpoint,
    /// Requests can be sent.
    Ready(Cluster),
}

/// Rules between attributes; those of single values are in the table.
#[must_use]
pub fn validate(config: &Object) -> Vec<Diagnostic> {
    let is_stated = |name: &str| !config.value(name).is_null();
    let mut broken = Vec::new();
    for (one, other) in [
        ("endpoint", "endpoints"),
        ("ca_cert", "ca_cert_file"),
        ("client_cert", "client_cert_file"),
        ("client_key", "client_key_file"),
        ("jwt_token", "jwt_token_file"),
    ] {
        if is_stated(one) && is_stated(other) {
            let detail = format!("{one} and {other} are stated: only one of them can be used");
            broken.push(Diagnostic::error("Two sources of one setting", detail).at(other));
        }
    }
    let has = |name: &str| is_stated(name) || is_stated(&format!("{name}_file"));
    for (one, other) in [("client_cert", "client_key"), ("client_key", "client_cert")] {
        if has(one) && !has(other) {
            let detail =
                format!("{one} is stated without {other}: a certificate and its private key go together");
            broken.push(Diagnostic::error("Half a client identity", detail));
        }
    }
    broken.extend(kubernetes::settings::validate(config));
    broken
}

/// The access that a valid configuration and the environment give.
///
/// # Errors
/// An endpoint, a certificate or a key that cannot be used.
pub fn access(config: &Object, environment: impl Fn(&str) -> Option<String>) -> Result<Access, Diagnostic> {
    let unknown = |attribute: &&Attribute| match config.value(attribute.name) {
        Value::List(members) => members.contains(&Value::Unknown),
        value => *value == Value::Unknown,
    };
    let mut own = TABLE.attributes.iter().filter(|attribute| !kubernetes::settings::is_own(attribute.name));
    if let Some(attribute) = own.find(unknown) {
        return Ok(Access::NotKnown(attribute.name));
    }
    // An empty variable is not set.
    let environment = |name: &str| environment(name).filter(|value| !value.is_empty());
    let (endpoints, attribute) = endpoints(config, &environment);
    if endpoints.is_empty() {
        return Ok(Access::NoEndpoint);
    }
    let certificates = certificates(config, &environment);
    let certificate =
        certificates.certificate.as_ref().map(Pem::read).transpose().map_err(|error| unusable(&error))?;
    let client = NodeClient::with_certificates(&endpoints, &certificates).map_err(|error| match error {
        client::Error::AddressMalformed(_) | client::Error::EndpointCount => unusable(&error).at(attribute),
        error => unusable(&error),
    })?;
    let is_secure = endpoints.iter().any(|endpoint| endpoint.starts_with("https:"));
    let certificate = certificate.filter(|_| is_secure);
    Ok(Access::Ready(Cluster {
        client: client.with_timeout(timeout(config)),
        is_secure,
        certificate: certificate.map(|pem| Certificate { spiffe_id: identity::of_certificate(&pem) }),
        token: token(config, &environment),
    }))
}

fn unusable(error: &client::Error) -> Diagnostic {
    Diagnostic::error("The provider configuration cannot be used", error.to_string())
}

/// The endpoints, and the attribute that states them.
fn endpoints(config: &Object, environment: &impl Fn(&str) -> Option<String>) -> (Vec<String>, &'static str) {
    if let Some(endpoint) = config.text("endpoint") {
        return (vec![endpoint.to_owned()], "endpoint");
    }
    let stated = config.value("endpoints").all_texts();
    let stated: Vec<_> = stated.into_iter().map(str::to_owned).collect();
    let split = |text: String| text.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
    let endpoints =
        if stated.is_empty() { environment("TRUST_FABRIC_ENDPOINTS").map(split) } else { Some(stated) };
    (endpoints.unwrap_or_default(), "endpoints")
}

fn certificates(config: &Object, environment: &impl Fn(&str) -> Option<String>) -> Certificates {
    let stated = |name: &'static str| match config.text(name) {
        Some(text) => Some(Pem::Text { name, text: text.to_owned() }),
        None => config.text(&format!("{name}_file")).map(Pem::from),
    };
    let variable = |name: &str| environment(name).map(Pem::from);
    let (mut certificate, mut private_key) = (stated("client_cert"), stated("client_key"));
    if certificate.is_none() && private_key.is_none() {
        (certificate, private_key) = (variable("TRUST_FABRIC_CERT"), variable("TRUST_FABRIC_KEY"));
    }
    let ca = stated("ca_cert").or_else(|| variable("TRUST_FABRIC_CA"));
    Certificates { ca, certificate, private_key }
}

fn token(config: &Object, environment: &impl Fn(&str) -> Option<String>) -> Option<Token> {
    let file = || config.text("jwt_token_file").map(|path| Token::File(PathBuf::from(path)));
    let stated = config.text("jwt_token").map(|token| Token::Text(token.to_owned())).or_else(file);
    stated.or_else(|| environment("TRUST_FABRIC_TOKEN").map(Token::Text))
}

/// Timeout of one request.
#[must_use]
pub fn timeout(config: &Object) -> Duration {
    let stated = config.text("request_timeout");
    let stated = stated.and_then(|text| duration::parse(text, limits::TIMEOUT_MAX).ok());
    stated.unwrap_or(limits::REQUEST_TIMEOUT)
}
