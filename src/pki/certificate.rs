//! Content of each kind of certificate, and the checks on an existing one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SanType,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use super::files::KeyPairPaths;
use super::names::{PEERS, peer_stem};
use super::{CertificateSubject, Error, Host, IssuedCertificate, Unfit};
use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::limits;

/// `O` of every subject: marks the certificate as one for development.
const ORGANIZATION: &str = "Trust Fabric, for development only";

/// Validity of a certificate, and the current time.
#[derive(Clone, Copy)]
pub(super) struct Validity {
    now: Timestamp,
    not_after: Timestamp,
}

impl Validity {
    pub(super) fn from(now: Timestamp, lifetime_days: u32) -> Self {
        let lifetime = Duration::from_secs(u64::from(lifetime_days) * 24 * 3600);
        Self { now, not_after: now.plus(lifetime) }
    }

    /// Ends at `not_after` at the latest.
    pub(super) fn within(self, not_after: Timestamp) -> Self {
        Self { not_after: self.not_after.min(not_after), ..self }
    }

    fn write_to(self, params: &mut CertificateParams) -> Option<()> {
        let from_epoch = |at: Timestamp| {
            let secs = Duration::from_secs(u64::try_from(at.secs()).ok()?);
            rcgen::date_time_ymd(1970, 1, 1).checked_add(secs.try_into().ok()?)
        };
        params.not_before = from_epoch(self.now.minus(limits::PKI_BACKDATED))?;
        params.not_after = from_epoch(self.not_after)?;
        Some(())
    }
}

/// The CA that signs the other certificates.
pub(super) struct Ca {
    certificate: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// Names and usages of an end-entity certificate.
pub(super) struct Names {
    common_name: String,
    id: String,
    hosts: Vec<Host>,
    usages: Vec<ExtendedKeyUsagePurpose>,
}

impl Names {
    /// `spiffe://<trust domain>/node`, loopback names, and `hosts`.
    pub(super) fn of_node(trust_domain: &TrustDomain, hosts: &[Host]) -> Self {
        let mut all = vec![
            Host::Name("localhost".to_owned()),
            Host::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Host::Address(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        for host in hosts {
            if !all.contains(host) {
                all.push(host.clone());
            }
        }
        Self {
            common_name: "node".to_owned(),
            id: format!("spiffe://{trust_domain}/node"),
            hosts: all,
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth],
        }
    }

    /// Its SPIFFE ID only (X.509-SVID §2: exactly one URI SAN).
    pub(super) fn of_caller(caller: &CertificateSubject) -> Self {
        Self {
            common_name: caller.file_stem().to_owned(),
            id: caller.id().to_owned(),
            hosts: Vec::new(),
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
        }
    }

    /// `spiffe://<trust domain>/node/<id>`, for both roles: nodes call each other.
    pub(super) fn of_peer(trust_domain: &TrustDomain, id: NonZeroU64) -> Self {
        Self {
            common_name: peer_stem(id),
            id: format!("spiffe://{trust_domain}/{PEERS}/{id}"),
            hosts: Vec::new(),
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        }
    }
}

/// The CA at `paths`, created if absent.
pub(super) fn ca(
    paths: &KeyPairPaths,
    trust_domain: &TrustDomain,
    validity: Validity,
) -> Result<(IssuedCertificate, Ca), Error> {
    // X.509-SVID §3.2: a signing certificate's SPIFFE ID has no path.
    let id = format!("spiffe://{trust_domain}");
    let existing = existing(paths, validity.now, None, &id)?;
    let is_new = existing.is_none();
    let (certificate, key) = if let Some(existing) = existing {
        existing
    } else {
        let key = KeyPair::generate()?;
        let mut params = params("CA", &id, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        paths.write(&certificate.pem(), &key.serialize_pem())?;
        (certificate.der().to_vec(), key)
    };
    let pair = pair_at(paths, &certificate, is_new)?;
    let issuer = Issuer::from_ca_cert_der(&certificate.as_slice().into(), key)?;
    Ok((pair, Ca { certificate, issuer }))
}

/// The end-entity certificate at `paths`, created if absent.
pub(super) fn end_entity(
    paths: &KeyPairPaths,
    ca: &Ca,
    names: &Names,
    validity: Validity,
) -> Result<IssuedCertificate, Error> {
    if let Some((certificate, _)) = existing(paths, validity.now, Some(ca), &names.id)? {
        check_hosts(&certificate, &names.hosts)
            .map_err(|reason| Error::Unfit { path: paths.certificate.clone(), reason })?;
        return pair_at(paths, &certificate, false);
    }
    let key = KeyPair::generate()?;
    let mut params = params(&names.common_name, &names.id, validity)?;
    for host in &names.hosts {
        params.subject_alt_names.push(match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        });
    }
    params.is_ca = IsCa::ExplicitNoCa;
    // X.509-SVID §4.3: digitalSignature, and neither keyCertSign nor cRLSign.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages.clone_from(&names.usages);
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &ca.issuer)?;
    paths.write(&certificate.pem(), &key.serialize_pem())?;
    pair_at(paths, certificate.der(), true)
}

fn params(common_name: &str, id: &str, validity: Validity) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = vec![SanType::URI(id.try_into()?)];
    validity.write_to(&mut params).ok_or(Error::Clock)?;
    Ok(params)
}

fn pair_at(paths: &KeyPairPaths, certificate: &[u8], is_new: bool) -> Result<IssuedCertificate, Error> {
    let unfit = |reason| Error::Unfit { path: paths.certificate.clone(), reason };
    let not_after = parsed(certificate).map_err(unfit)?.validity().not_after.timestamp();
    Ok(IssuedCertificate {
        certificate: paths.certificate.clone(),
        private_key: paths.private_key.clone(),
        not_after: Timestamp::from_secs(not_after),
        is_new,
    })
}

// --- certificates of an earlier run ------------------------------------------------------------

/// The certificate of an earlier run in DER and its key, if they match the request.
fn existing(
    paths: &KeyPairPaths,
    now: Timestamp,
    ca: Option<&Ca>,
    id: &str,
) -> Result<Option<(Vec<u8>, KeyPair)>, Error> {
    let Some((pem, key)) = paths.read()? else { return Ok(None) };
    let unfit = |reason| Error::Unfit { path: paths.certificate.clone(), reason };
    let key = KeyPair::from_pem(&key).map_err(|_| unfit(Unfit::NotAKey))?;
    let certificate = der_of(&pem).map_err(unfit)?;
    check(&certificate, &key, now, ca, id).map_err(unfit)?;
    Ok(Some((certificate, key)))
}

fn der_of(pem: &[u8]) -> Result<Vec<u8>, Unfit> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| Unfit::NotACertificate)?;
    if pem.label == "CERTIFICATE" { Ok(pem.contents) } else { Err(Unfit::NotACertificate) }
}

fn parsed(der: &[u8]) -> Result<X509Certificate<'_>, Unfit> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(Unfit::NotACertificate),
    }
}

/// In this order: key, validity, CA or signature by `ca`, `id` as the only URI.
fn check(der: &[u8], key: &KeyPair, now: Timestamp, ca: Option<&Ca>, id: &str) -> Result<(), Unfit> {
    let certificate = parsed(der)?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        return Err(Unfit::OtherKey);
    }
    let validity = certificate.validity();
    if !(validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now.secs()) {
        return Err(Unfit::Expired);
    }
    match ca {
        None if !certificate.is_ca() => return Err(Unfit::NotACa),
        None => {}
        Some(ca) => {
            let ca = parsed(&ca.certificate)?;
            certificate.verify_signature(Some(ca.public_key())).map_err(|_| Unfit::OtherCa)?;
        }
    }
    let is_uri = |name: &GeneralName<'_>| matches!(name, GeneralName::URI(_));
    let names = names_of(&certificate);
    match names.iter().filter(|name| is_uri(name)).collect::<Vec<_>>().as_slice() {
        [GeneralName::URI(uri)] if *uri == id => Ok(()),
        _ => Err(Unfit::OtherName(id.to_owned())),
    }
}

fn check_hosts(der: &[u8], hosts: &[Host]) -> Result<(), Unfit> {
    let certificate = parsed(der)?;
    let names = names_of(&certificate);
    for host in hosts {
        let is_named = match host {
            Host::Name(name) => names.contains(&GeneralName::DNSName(name)),
            Host::Address(IpAddr::V4(address)) => names.contains(&GeneralName::IPAddress(&address.octets())),
            Host::Address(IpAddr::V6(address)) => names.contains(&GeneralName::IPAddress(&address.octets())),
        };
        if !is_named {
            return Err(Unfit::OtherName(host.to_string()));
        }
    }
    Ok(())
}

fn names_of<'c>(certificate: &'c X509Certificate<'_>) -> Vec<GeneralName<'c>> {
    let names = certificate.subject_alternative_name().ok().flatten();
    names.map(|names| names.value.general_names.clone()).unwrap_or_default()
}
