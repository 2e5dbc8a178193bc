//! Client certificates of the bench: those of `trust-fabric pki`, and invalid ones.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SerialNumber, date_time_ymd,
};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::hosts::{HOSTS_MAX, Hosts};

pub const TRUST_DOMAIN: &str = "dev.trust-fabric.local";

/// A client certificate with its chain, and its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads `<name>.pem` and `<name>-key.pem` in `directory`.
    pub fn read(directory: &Path, name: &str) -> Result<Self> {
        let (certificate, key) =
            (directory.join(format!("{name}.pem")), directory.join(format!("{name}-key.pem")));
        let chain = CertificateDer::pem_file_iter(&certificate)
            .with_context(|| certificate.display().to_string())?
            .collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&key).with_context(|| key.display().to_string())?;
        Ok(Self { chain, key })
    }

    fn made(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        let chain = vec![certificate.der().clone()];
        Self { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() }
    }
}

/// TLS to the node: trusts `ca.pem` in `directory`, presents `identity`, offers `protocol`.
pub fn client(directory: &Path, identity: Option<&Identity>, protocol: &[u8]) -> Result<Arc<ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.join("ca.pem"))?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => config.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?,
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The peer certificate of node `id` of this trust domain and its key: `<name>.pem` and `<name>-key.pem`.
pub fn write_peer(directory: &Path, name: &str, (trust_domain, id): (&str, u64)) -> Result<()> {
    let ca_key = KeyPair::from_pem(&fs::read_to_string(directory.join("ca-key.pem"))?)?;
    let ca = Issuer::from_ca_cert_pem(&fs::read_to_string(directory.join("ca.pem"))?, ca_key)?;
    let mut params = leaf(&[&format!("spiffe://{trust_domain}/node/{id}")])?;
    params.serial_number = Some(SerialNumber::from(1000 + id));
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    write_private(&directory.join(format!("{name}-key.pem")), &key.serialize_pem())?;
    Ok(fs::write(directory.join(format!("{name}.pem")), params.signed_by(&key, &ca)?.pem())?)
}

/// A certificate of this machine and of its hosts, for servers and clients that check names and no identity, and its key.
pub fn write_server(directory: &Path, name: &str) -> Result<()> {
    let ca_key = KeyPair::from_pem(&fs::read_to_string(directory.join("ca-key.pem"))?)?;
    let ca = Issuer::from_ca_cert_pem(&fs::read_to_string(directory.join("ca.pem"))?, ca_key)?;
    let mut params = leaf(&[])?;
    let addresses = (1..=HOSTS_MAX).map(Hosts::for_clients).chain([Ipv4Addr::LOCALHOST.into()]);
    params.subject_alt_names = vec![SanType::DnsName("localhost".try_into()?)];
    params.subject_alt_names.extend(addresses.map(SanType::IpAddress));
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    write_private(&directory.join(format!("{name}-key.pem")), &key.serialize_pem())?;
    Ok(fs::write(directory.join(format!("{name}.pem")), params.signed_by(&key, &ca)?.pem())?)
}

/// Writes a file with mode 0600.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    Ok(options.open(path).and_then(|mut file| file.write_all(text.as_bytes()))?)
}

/// A CA for tests: `ca.pem` and `ca-key.pem`.
#[cfg(test)]
pub fn write_ca(directory: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    write_private(&directory.join("ca-key.pem"), &key.serialize_pem())?;
    Ok(fs::write(directory.join("ca.pem"), params.self_signed(&key)?.pem())?)
}

/// A sample of invalid certificates, each with its fault. The tests of the node have the whole matrix; this
/// sample shows that the running program uses it.
pub fn bad(directory: &Path) -> Result<Vec<(&'static str, Identity)>> {
    let operator = format!("spiffe://{TRUST_DOMAIN}/operator");
    let ca_key = KeyPair::from_pem(&fs::read_to_string(directory.join("ca-key.pem"))?)?;
    let ca_text = fs::read_to_string(directory.join("ca.pem"))?;
    let ca = Issuer::from_ca_cert_pem(&ca_text, ca_key)?;
    let signed = |params: CertificateParams| -> Result<Identity> {
        let key = KeyPair::generate()?;
        Ok(Identity::made(&params.signed_by(&key, &ca)?, &key))
    };

    let mut rows = Vec::new();
    let key = KeyPair::generate()?;
    rows.push(("self-signed", Identity::made(&leaf(&[&operator])?.self_signed(&key)?, &key)));

    // Only the signature differs from the real CA.
    let other = Issuer::from_ca_cert_pem(&ca_text, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    rows.push(("of another CA", Identity::made(&leaf(&[&operator])?.signed_by(&key, &other)?, &key)));

    let mut params = leaf(&[&operator])?;
    params.not_after = date_time_ymd(2020, 1, 2);
    rows.push(("expired", signed(params)?));
    let mut params = leaf(&[&operator])?;
    params.not_before = date_time_ymd(2090, 1, 1);
    rows.push(("not yet valid", signed(params)?));
    let mut params = leaf(&[&operator])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    rows.push(("for servers only", signed(params)?));
    let mut params = leaf(&[&operator])?;
    params.extended_key_usages = vec![];
    rows.push(("without extended key usage", signed(params)?));
    let mut params = leaf(&[&operator])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    rows.push(("a CA itself", signed(params)?));
    rows.push(("two URIs", signed(leaf(&[&operator, &format!("spiffe://{TRUST_DOMAIN}/workload")])?)?));
    rows.push(("no URI", signed(leaf(&[])?)?));
    rows.push(("an https URI", signed(leaf(&["https://dev.trust-fabric.local/operator"])?)?));
    rows.push(("another trust domain", signed(leaf(&["spiffe://evil.example/operator"])?)?));
    rows.push((
        "a longer trust domain",
        signed(leaf(&["spiffe://dev.trust-fabric.local.evil.example/operator"])?)?,
    ));
    rows.push(("no path", signed(leaf(&[&format!("spiffe://{TRUST_DOMAIN}")])?)?));
    Ok(rows)
}

/// A certificate that is valid except for these URIs.
fn leaf(uris: &[&str]) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2099, 1, 1);
    params.serial_number = Some(SerialNumber::from(42));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    for uri in uris {
        params.subject_alt_names.push(SanType::URI((*uri).try_into()?));
    }
    Ok(params)
}
