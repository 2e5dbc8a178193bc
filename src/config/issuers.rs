//! `[[issuers]]`: issuers of foreign credentials, and the source of their keys.

use std::path::PathBuf;
use std::time::Duration;

use super::checker::{Checker, duration};
use super::schema;
use crate::id::TrustDomain;
use crate::limits;
use crate::outbound::guard::Guard;
use crate::token::issuer::{FetchFiles, Issuer, IssuerKind, KeySource};
use crate::token::jws::Algorithm;

/// Checks each issuer alone; [`crate::token::issuer::Issuers`] checks all of them together, if none has a mistake.
pub(super) fn check(
    all: &[schema::Issuer],
    own_issuer: Option<&str>,
    guard: &Guard,
    checker: &mut Checker,
) -> Vec<Issuer> {
    let mut issuers = Vec::new();
    for (index, settings) in all.iter().enumerate() {
        let section = Section { settings, name: format!("issuers[{index}]"), own_issuer, guard };
        issuers.extend(section.check(checker));
    }
    issuers
}

struct Section<'k> {
    settings: &'k schema::Issuer,
    name: String,
    own_issuer: Option<&'k str>,
    guard: &'k Guard,
}

impl Section<'_> {
    fn setting(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn check(&self, checker: &mut Checker) -> Option<Issuer> {
        let iss = checker.require(&self.setting("issuer"), self.settings.issuer.as_deref());
        let iss = iss.and_then(|iss| checker.keep(&self.setting("issuer"), self.foreign(iss)));
        let kind = checker.keep(&self.setting("subject"), self.kind());
        let keys = self.key_source(checker);
        let fetch_files = self.fetch_files(checker);
        let algorithms = checker.keep(&self.setting("algorithms"), algorithms(&self.settings.algorithms));
        let audiences = checker
            .keep(&self.setting("audiences"), audiences(self.settings.audiences.as_deref(), self.own_issuer));
        let trust_domains = checker.keep(&self.setting("trust_domains"), self.trust_domains());
        // Nonces are retained as long as a credential of the maximum age could repeat one
        // (limits::NONCE_RETENTION), so no issuer may exceed it.
        let age =
            duration(&self.settings.max_credential_age, Duration::from_secs(1), limits::CREDENTIAL_AGE_MAX);
        let max_credential_age = checker.keep(&self.setting("max_credential_age"), age);
        Some(Issuer {
            iss: iss?,
            kind: kind?,
            keys: keys?,
            fetch_files: fetch_files?,
            algorithms: algorithms?,
            audiences: audiences?,
            trust_domains: trust_domains?,
            max_credential_age: max_credential_age?,
            verified_email: self.settings.verified_email,
        })
    }

    fn foreign(&self, iss: &str) -> Result<String, &'static str> {
        if iss.is_empty() || iss.len() > limits::URI_BYTES_MAX {
            Err("must be the iss of the credentials, byte for byte")
        } else if self.own_issuer == Some(iss) {
            Err("is this fabric's own issuer, whose tokens need no section")
        } else {
            Ok(iss.to_owned())
        }
    }

    fn kind(&self) -> Result<IssuerKind, &'static str> {
        match (self.settings.kind, self.settings.subject) {
            (schema::IssuerKind::Jwt, Some(subject)) => Ok(IssuerKind::Jwt { subject }),
            (schema::IssuerKind::Jwt, None) => Err("must be \"kubernetes\", \"identifier\" or \"opaque\""),
            (schema::IssuerKind::Spiffe, None) => Ok(IssuerKind::Spiffe),
            (schema::IssuerKind::Spiffe, Some(_)) => {
                Err("must not be set for kind = \"spiffe\": sub is a SPIFFE ID")
            }
        }
    }

    /// Exactly one of five settings.
    fn key_source(&self, checker: &mut Checker) -> Option<KeySource> {
        let settings = self.settings;
        let file = |path: &PathBuf, source: fn(PathBuf) -> KeySource| Ok(source(path.clone()));
        let discovery = settings.discovery.then(|| match &settings.issuer {
            Some(iss) => self.fetchable(iss).map(|_| KeySource::Discovery),
            None => Ok(KeySource::Discovery),
        });
        let mut sources: Vec<(&str, schema::IssuerKind, Result<KeySource, String>)> = Vec::new();
        sources.extend(
            settings
                .keys_file
                .iter()
                .map(|path| ("keys_file", schema::IssuerKind::Jwt, file(path, KeySource::File))),
        );
        sources.extend(
            settings
                .keys_url
                .iter()
                .map(|url| ("keys_url", schema::IssuerKind::Jwt, self.fetchable(url).map(KeySource::Url))),
        );
        sources.extend(discovery.map(|source| ("discovery", schema::IssuerKind::Jwt, source)));
        sources.extend(settings.bundle_file.iter().map(|path| {
            ("bundle_file", schema::IssuerKind::Spiffe, file(path, KeySource::SpiffeBundleFile))
        }));
        sources.extend(settings.bundle_endpoint.iter().map(|url| {
            let source = self.fetchable(url).map(KeySource::SpiffeBundleEndpoint);
            ("bundle_endpoint", schema::IssuerKind::Spiffe, source)
        }));
        let mut sources = sources.into_iter();
        match (sources.next(), sources.next()) {
            (Some((name, kind, source)), None) if kind == settings.kind => {
                checker.keep(&self.setting(name), source)
            }
            _ => {
                let rule = match settings.kind {
                    schema::IssuerKind::Jwt => "needs exactly one of keys_file, keys_url, discovery = true",
                    schema::IssuerKind::Spiffe => "needs exactly one of bundle_file, bundle_endpoint",
                };
                checker.keep(&self.name, Err(rule))
            }
        }
    }

    /// Files for fetches over TLS: a token is never sent in clear, and a file that nothing is fetched with is a mistake.
    fn fetch_files(&self, checker: &mut Checker) -> Option<FetchFiles> {
        let settings = self.settings;
        let discovered = settings.issuer.as_ref().filter(|_| settings.discovery);
        let address = settings.keys_url.as_ref().or(settings.bundle_endpoint.as_ref()).or(discovered);
        let is_fetched_over_tls = address.is_some_and(|address| address.starts_with("https://"));
        let mut file = |name: &str, path: &Option<PathBuf>| {
            let allowed = path.is_none() || is_fetched_over_tls;
            let rule = "needs discovery, keys_url or bundle_endpoint with an https address";
            checker.keep(&self.setting(name), if allowed { Ok(path.clone()) } else { Err(rule) })
        };
        let ca = file("ca_file", &settings.ca_file);
        let bearer_token = file("bearer_token_file", &settings.bearer_token_file);
        Some(FetchFiles { ca: ca?, bearer_token: bearer_token? })
    }

    fn fetchable(&self, address: &str) -> Result<String, String> {
        fetchable(address, self.guard)
    }

    fn trust_domains(&self) -> Result<Vec<TrustDomain>, String> {
        let trust_domains = trust_domains(&self.settings.trust_domains)?;
        match (self.settings.kind, trust_domains.len()) {
            (_, 0) => Err("must name at least one".to_owned()),
            (schema::IssuerKind::Spiffe, 2..) => {
                Err("must name exactly one: a bundle is of one trust domain".to_owned())
            }
            _ => Ok(trust_domains),
        }
    }
}

/// Applies the rules of `outbound` at start.
pub(super) fn fetchable(address: &str, guard: &Guard) -> Result<String, String> {
    guard.check_keys_url(address).map(|()| address.to_owned()).map_err(|error| error.to_string())
}

pub(super) fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, String> {
    let read = |name: &String| name.parse().map_err(|_| format!("{name:?} is not an accepted algorithm"));
    let algorithms: Vec<Algorithm> = names.iter().map(read).collect::<Result<_, _>>()?;
    if algorithms.is_empty() { Err("must name at least one".to_owned()) } else { Ok(algorithms) }
}

/// Default: our own issuer.
pub(super) fn audiences(
    stated: Option<&[String]>,
    own_issuer: Option<&str>,
) -> Result<Vec<String>, &'static str> {
    let audiences = match stated {
        Some(audiences) => audiences.to_vec(),
        // A missing own issuer is a mistake of its own.
        None => vec![own_issuer.unwrap_or("unknown").to_owned()],
    };
    if audiences.is_empty() || audiences.iter().any(String::is_empty) {
        Err("must name at least one, none of them empty")
    } else {
        Ok(audiences)
    }
}

pub(super) fn trust_domains(names: &[String]) -> Result<Vec<TrustDomain>, String> {
    let read = |name: &String| name.parse().map_err(|error| format!("{name:?}: {error}"));
    names.iter().map(read).collect()
}
