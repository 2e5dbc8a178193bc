//! A program that gives the credential of a user (`ExecCredential`), as cloud providers have them.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value as Json, json};
use tokio::process::Command;

use super::Certificate;
use crate::limits;

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// The program and its arguments.
#[derive(Clone, PartialEq, Eq)]
pub struct Exec {
    api_version: &'static str,
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A credential that a program gave.
#[derive(Debug, Default)]
pub struct Credential {
    pub token: Option<String>,
    pub certificate: Option<Certificate>,
}

impl std::fmt::Debug for Exec {
    /// Without arguments and variables, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.command.display())
    }
}

impl Exec {
    /// A program of one of the known versions.
    ///
    /// # Errors
    /// The rule of the version.
    pub fn new(
        api_version: &str,
        command: PathBuf,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let known = VERSIONS.into_iter().find(|known| *known == api_version);
        let api_version =
            known.ok_or_else(|| format!("exec: the version must be {}", VERSIONS.join(" or ")))?;
        Ok(Self { api_version, command, arguments, environment })
    }

    /// Runs the program.
    ///
    /// # Errors
    /// The cause in words, without its output: that may have a secret.
    pub async fn run(&self) -> Result<Credential, String> {
        let name = self.command.display();
        let order =
            json!({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": {"interactive": false}});
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", order.to_string()).stdin(Stdio::null()).kill_on_drop(true);
        let ended = tokio::time::timeout(limits::EXEC_TIMEOUT, command.output()).await;
        let timeout = limits::EXEC_TIMEOUT.as_secs();
        let output = ended
            .map_err(|_| format!("exec: {name} did not end within {timeout} s"))?
            .map_err(|error| format!("exec: {name}: {error}"))?;
        if !output.status.success() {
            return Err(format!("exec: {name} failed: {}", output.status));
        }
        self.credential(&output.stdout).ok_or_else(|| format!("exec: {name} gave no {}", self.api_version))
    }

    fn credential(&self, output: &[u8]) -> Option<Credential> {
        let given: Json = serde_json::from_slice(output).ok()?;
        let text = |key: &str| given["status"][key].as_str().map(str::to_owned);
        let pair = (text("clientCertificateData"), text("clientKeyData"));
        let certificate = match pair {
            (Some(certificate), Some(private_key)) => Some(Certificate {
                certificate: certificate.into_bytes(),
                private_key: private_key.into_bytes(),
            }),
            _ => None,
        };
        let token = text("token");
        let is_given = given["apiVersion"] == self.api_version && (token.is_some() || certificate.is_some());
        is_given.then_some(Credential { token, certificate })
    }
}
