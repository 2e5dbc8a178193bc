//! `trust-fabric pki`

use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::Error;
use crate::clock::Clock;
use crate::id::TrustDomain;
use crate::limits;
use crate::pki::{
    self, CertificateSubject, DevelopmentIssuer, Host, IssuedCertificate, IssuedCertificates, IssuerFiles,
};

/// Default callers, with their capabilities.
const CALLERS: [(&str, &str); 2] =
    [("operator", r#"["cluster.admin", "metrics.read"]"#), ("workload", r#"["exchange"]"#)];

/// Port of TLS (ARCHITECTURE.md, "Ports").
pub(super) const HTTPS_PORT: u16 = 8694;
/// Port of the peer listener.
const PEER_PORT: u16 = 8695;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Directory of the files; created if absent.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// Trust domain of the node and its callers.
    #[arg(long, value_name = "NAME", default_value = "dev.trust-fabric.local")]
    trust_domain: TrustDomain,
    /// Additional name or address of the node, besides localhost, 127.0.0.1 and `::1`; can be repeated.
    #[arg(long = "host", value_name = "NAME_OR_ADDRESS")]
    hosts: Vec<Host>,
    /// SPIFFE ID or path of a caller; can be repeated [default: operator and workload]
    #[arg(long = "caller", value_name = "PATH_OR_ID")]
    callers: Vec<String>,
    /// `node.id` of a cluster member that gets a peer certificate; can be repeated.
    #[arg(long = "peer", value_name = "ID")]
    peers: Vec<NonZeroU64>,
    /// Also create a development issuer for `trust-fabric credential`.
    #[arg(long = "issuer")]
    has_issuer: bool,
    /// Lifetime of the certificates in days.
    #[arg(long = "days", value_name = "DAYS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::PKI_DAYS_MAX)))]
    lifetime_days: u32,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let names = if arguments.callers.is_empty() {
        CALLERS.iter().map(|(name, _)| (*name).to_owned()).collect()
    } else {
        arguments.callers.clone()
    };
    let callers = names.iter().map(|name| CertificateSubject::within(name, &arguments.trust_domain));
    let request = pki::CertificatePlan {
        directory: arguments.dir.clone(),
        trust_domain: arguments.trust_domain.clone(),
        hosts: arguments.hosts.clone(),
        peers: arguments.peers.clone(),
        callers: callers.collect::<Result<_, _>>()?,
        lifetime_days: arguments.lifetime_days,
    };
    let issued = pki::make(&request, Clock::system().now())?;
    let issuer = arguments.has_issuer.then(|| DevelopmentIssuer::make(&request.directory)).transpose()?;
    Ok(write(out, &request, &issued, issuer.as_ref())?)
}

fn write(
    out: &mut dyn Write,
    request: &pki::CertificatePlan,
    issued: &IssuedCertificates,
    issuer: Option<&IssuerFiles>,
) -> io::Result<()> {
    writeln!(
        out,
        "Certificates of {}, for development only: the key of the CA lies beside them.\n\
         For production see docs/guide/certificates.md.\n",
        request.trust_domain
    )?;
    let peers = issued.peers.iter().map(|(_, pair)| pair);
    let callers = issued.callers.iter().map(|(_, pair)| pair);
    for pair in [&issued.ca, &issued.node].into_iter().chain(peers).chain(callers) {
        write_pair(out, pair)?;
    }
    if let Some(issuer) = issuer {
        let status = status_of(issuer.is_new);
        writeln!(out, "{status}  {}\n{status}  {}", issuer.key_set.display(), issuer.private_key.display())?;
    }
    writeln!(out, "\nConfiguration of the node:\n")?;
    write_config(out, request, issued)?;
    write_cluster(out, issued)?;
    if let Some(issuer) = issuer {
        write_issuer(out, request, issuer)?;
    }
    if let Some((_, caller)) = issued.callers.first() {
        writeln!(out, "\nCall it:\n")?;
        writeln!(
            out,
            "curl --cacert {} --cert {} --key {} https://localhost:{HTTPS_PORT}/v1/sys/health",
            shell_word(&issued.ca.certificate),
            shell_word(&caller.certificate),
            shell_word(&caller.private_key),
        )?;
    }
    Ok(())
}

fn status_of(is_new: bool) -> &'static str {
    if is_new { "created" } else { "present" }
}

fn write_pair(out: &mut dyn Write, pair: &IssuedCertificate) -> io::Result<()> {
    let status = status_of(pair.is_new);
    let not_after = pair.not_after.to_rfc3339();
    let day = not_after.split('T').next().unwrap_or(&not_after);
    writeln!(out, "{status}  {}  valid until {day}", pair.certificate.display())?;
    writeln!(out, "{status}  {}", pair.private_key.display())
}

fn write_config(
    out: &mut dyn Write,
    request: &pki::CertificatePlan,
    issued: &IssuedCertificates,
) -> io::Result<()> {
    // A further host name means that callers come from other machines.
    let address = if request.hosts.is_empty() { "127.0.0.1" } else { "0.0.0.0" };
    writeln!(out, "[listen]\nhttp = \"127.0.0.1:8693\"\nhttps = \"{address}:{HTTPS_PORT}\"")?;
    if !request.hosts.is_empty() {
        let hosts: Vec<Value> = request.hosts.iter().map(|host| host.to_string().into()).collect();
        writeln!(out, "hosts = {}", Value::from(hosts))?;
    }
    writeln!(out, "\n[tls]")?;
    for (key, path) in [
        ("certificate", &issued.node.certificate),
        ("private_key", &issued.node.private_key),
        ("client_ca", &issued.ca.certificate),
    ] {
        writeln!(out, "{key} = {}", quoted(path))?;
    }
    writeln!(out, "client_trust_domain = \"{}\"", request.trust_domain)?;
    for (caller, _) in &issued.callers {
        let default = CALLERS.iter().find(|(name, _)| *name == caller.file_stem());
        writeln!(out, "\n[[callers]]\nid = \"{}\"", caller.id())?;
        match default {
            Some((_, capabilities)) => writeln!(out, "capabilities = {capabilities}")?,
            None => writeln!(out, "capabilities = [\"exchange\"]    # or others")?,
        }
    }
    Ok(())
}

/// The sections of each cluster member, and the members that all share.
fn write_cluster(out: &mut dyn Write, issued: &IssuedCertificates) -> io::Result<()> {
    for (id, pair) in &issued.peers {
        let (certificate, private_key) = (quoted(&pair.certificate), quoted(&pair.private_key));
        writeln!(out, "\n[cluster]    # on the node with node.id {id}")?;
        writeln!(
            out,
            "listen = \"0.0.0.0:{PEER_PORT}\"\ncertificate = {certificate}\nprivate_key = {private_key}"
        )?;
        writeln!(out, "ca = {}", quoted(&issued.ca.certificate))?;
    }
    for (id, _) in &issued.peers {
        let address = format!("node-{id}:{PEER_PORT}");
        writeln!(
            out,
            "\n[[cluster.members]]\nid = {id}\naddress = \"{address}\"    # as the other nodes reach it"
        )?;
    }
    Ok(())
}

fn write_issuer(out: &mut dyn Write, request: &pki::CertificatePlan, issuer: &IssuerFiles) -> io::Result<()> {
    writeln!(out, "\n[[issuers]]\nissuer = \"{}\"\nsubject = \"kubernetes\"", DevelopmentIssuer::ISS)?;
    writeln!(out, "keys_file = {}", quoted(&issuer.key_set))?;
    writeln!(out, "trust_domains = [\"{}\"]", request.trust_domain)
}

/// A TOML string; JSON's escapes are valid in TOML.
fn quoted(path: &Path) -> Value {
    path.to_string_lossy().into_owned().into()
}

/// A single word for a shell.
fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    // A leading dash would be parsed as an option.
    if text.chars().all(is_plain) && !text.starts_with('-') {
        return text.into_owned();
    }
    let quoted = format!("'{}'", text.replace('\'', r"'\''"));
    if text.starts_with('-') { format!("./{quoted}") } else { quoted }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(directory: &Path) -> Arguments {
        Arguments {
            dir: directory.to_owned(),
            trust_domain: "dev.example".parse().expect("trust domain"),
            hosts: Vec::new(),
            callers: Vec::new(),
            peers: Vec::new(),
            has_issuer: false,
            lifetime_days: 30,
        }
    }

    fn output(arguments: &Arguments) -> String {
        let mut text = Vec::new();
        run(arguments, &mut text).expect("made");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn output_lists_files_and_configuration() {
        let parent = tempfile::tempdir().expect("directory");
        let directory = parent.path().join("pki");
        let first = output(&arguments(&directory));
        assert!(
            first.contains("for development only") && first.contains("docs/guide/certificates.md"),
            "{first}"
        );
        assert_eq!(
            (first.matches("\ncreated  ").count(), first.matches("\npresent  ").count()),
            (8, 0),
            "{first}"
        );
        let config = first.split_once("[listen]").expect("configuration").1;
        let config = config.split_once("Call it").expect("a call").0;
        for line in [
            "https = \"127.0.0.1:8694\"",
            "client_trust_domain = \"dev.example\"",
            "id = \"spiffe://dev.example/operator\"\ncapabilities = [\"cluster.admin\", \"metrics.read\"]",
            "id = \"spiffe://dev.example/workload\"\ncapabilities = [\"exchange\"]",
        ] {
            assert!(config.contains(line), "{line}: {config}");
        }
        let second = output(&Arguments { callers: vec!["ci".to_owned()], ..arguments(&directory) });
        assert_eq!(
            (second.matches("\ncreated  ").count(), second.matches("\npresent  ").count()),
            (2, 4),
            "{second}"
        );
        assert!(
            second.contains("id = \"spiffe://dev.example/ci\"\ncapabilities = [\"exchange\"]"),
            "{second}"
        );
    }

    #[test]
    fn additional_host_listens_on_all_addresses() {
        let parent = tempfile::tempdir().expect("directory");
        let hosts = vec!["fabric.example.org".parse().expect("host"), "2001:db8::1".parse().expect("host")];
        let output = output(&Arguments { hosts, ..arguments(&parent.path().join("pki")) });
        assert!(output.contains("https = \"0.0.0.0:8694\""), "{output}");
        assert!(output.contains("hosts = [\"fabric.example.org\",\"2001:db8::1\"]"), "{output}");
    }

    #[test]
    fn peers_and_issuer_have_their_sections() {
        let parent = tempfile::tempdir().expect("directory");
        let directory = parent.path().join("pki");
        let peers = [1, 2].map(|id| NonZeroU64::new(id).expect("an id")).to_vec();
        let several = Arguments { peers, has_issuer: true, ..arguments(&directory) };
        let first = output(&several);
        assert_eq!(
            (first.matches("\ncreated  ").count(), first.matches("\npresent  ").count()),
            (14, 0),
            "{first}"
        );
        let at = directory.display();
        for lines in [
            format!(
                "[cluster]    # on the node with node.id 2\nlisten = \"0.0.0.0:8695\"\ncertificate = \"{at}/peer-2.pem\"\nprivate_key = \"{at}/peer-2-key.pem\"\nca = \"{at}/ca.pem\"\n"
            ),
            "[[cluster.members]]\nid = 2\naddress = \"node-2:8695\"".to_owned(),
            format!(
                "subject = \"kubernetes\"\nkeys_file = \"{at}/issuer-keys.json\"\ntrust_domains = [\"dev.example\"]\n"
            ),
        ] {
            assert!(first.contains(&lines), "{lines}: {first}");
        }
        let second = output(&several);
        assert_eq!(
            (second.matches("\ncreated  ").count(), second.matches("\npresent  ").count()),
            (0, 14),
            "{second}"
        );
        let without = output(&arguments(&directory));
        assert!(!without.contains("[cluster]") && !without.contains("[[issuers]]"), "{without}");
    }

    #[test]
    fn paths_are_quoted_for_shell_and_configuration() {
        for (path, word) in [
            ("pki/ca.pem", "pki/ca.pem"),
            ("a b/ca.pem", "'a b/ca.pem'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
            ("-k/ca.pem", "./'-k/ca.pem'"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
        assert_eq!(quoted(Path::new("a\"b\\c\nd")).to_string(), r#""a\"b\\c\nd""#);
    }

    #[test]
    fn caller_with_path_traversal_is_refused() {
        let parent = tempfile::tempdir().expect("directory");
        let directory = parent.path().join("pki");
        let hostile = Arguments { callers: vec!["../../etc/x".to_owned()], ..arguments(&directory) };
        let refused = run(&hostile, &mut Vec::new()).expect_err("refused").to_string();
        assert!(refused.starts_with("caller \"../../etc/x\": must be segments of"), "{refused}");
        assert!(!directory.exists());
    }
}
