//! Certificates made with the documented commands or with `trust-fabric pki`, and curl, which presents them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use trust_fabric::clock::Clock;
use trust_fabric::pki;

use super::TRUST_DOMAIN;

/// The code blocks of `docs/guide/certificates.md` in this language, in order.
pub fn documented_blocks(language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/certificates.md");
    let page = fs::read_to_string(page).expect("read the page");
    let fence = format!("```{language}\n");
    let blocks =
        page.split(&fence).skip(1).map(|rest| rest.split_once("```\n").expect("an end").0.to_owned());
    blocks.collect()
}

/// A directory in which every command of `docs/guide/certificates.md` was run in one shell, in order.
pub fn run_documented_commands() -> TempDir {
    let directory = tempfile::tempdir().expect("directory");
    let commands = documented_blocks("sh").concat();
    let output = Command::new("sh")
        .args(["-euxc", &commands])
        .current_dir(directory.path())
        .output()
        .expect("run a shell");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "docs/guide/certificates.md does not work (is openssl there?):\n{printed}"
    );
    directory
}

/// The output of `trust-fabric pki --caller …`.
pub fn development_pki(callers: &[&str]) -> (TempDir, pki::IssuedCertificates) {
    let directory = tempfile::tempdir().expect("directory");
    let trust_domain = TRUST_DOMAIN.parse().expect("trust domain");
    let callers = callers
        .iter()
        .map(|name| pki::CertificateSubject::within(name, &trust_domain).expect("caller"))
        .collect();
    let request = pki::CertificatePlan {
        directory: directory.path().join("pki"),
        trust_domain,
        hosts: Vec::new(),
        peers: Vec::new(),
        callers,
        lifetime_days: 365,
    };
    let made = pki::make(&request, Clock::system().now()).expect("made");
    (directory, made)
}

/// Arguments of curl for a call with a certificate.
#[derive(Clone, Copy)]
pub struct Curl<'c> {
    pub ca: &'c Path,
    /// Certificate and key.
    pub caller: Option<(&'c Path, &'c Path)>,
}

impl Curl<'_> {
    /// Status of the response, `None` without one. Sends `body` as JSON.
    pub fn status(self, method: &str, url: &str, body: Option<&Value>) -> Option<u16> {
        let mut curl = Command::new("curl");
        curl.args(["--disable", "--silent", "--noproxy", "*", "--max-time", "20"])
            .args(["--output", "/dev/null", "--write-out", "%{http_code}"])
            .args(["--request", method])
            .arg("--cacert")
            .arg(self.ca);
        if let Some((certificate, key)) = self.caller {
            curl.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        if let Some(body) = body {
            curl.args(["--header", "content-type: application/json", "--data", &body.to_string()]);
        }
        let output = curl.arg(url).output().expect("run curl");
        match String::from_utf8_lossy(&output.stdout).parse().expect("a status") {
            0 => None,
            status => Some(status),
        }
    }
}
