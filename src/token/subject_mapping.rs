//! Mapping of an issuer's `sub` to a workload identifier (contract §3). Each rule is injective: two subjects of one
//! issuer never map to one identifier.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::Error;
use super::claims::Claims;
use super::issuer::{Issuer, IssuerKind, SubjectMapping};
use crate::id::{WorkloadId, is_path_segment};

/// Workload attributes of a Kubernetes service-account token, for policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    pub namespace: String,
    pub service_account: String,
    /// The pod, if the token is bound to one.
    pub pod: Option<String>,
}

/// Maps `sub` by the issuer's rule.
///
/// # Errors
/// [`Error::SubjectMalformed`] if `sub` does not follow the rule, [`Error::SubjectDisagrees`] if the claim
/// `kubernetes.io` contradicts it, [`Error::TrustDomainNotAllowed`] if the issuer may not name the resulting trust
/// domain.
pub fn map(issuer: &Issuer, claims: &Claims) -> Result<(WorkloadId, Option<Kubernetes>), Error> {
    let trust_domain = issuer.trust_domains.first().ok_or(Error::TrustDomainNotAllowed)?;
    let (text, kubernetes) = match issuer.kind {
        IssuerKind::Spiffe if !claims.sub.starts_with("spiffe://") => return Err(Error::SubjectMalformed),
        IssuerKind::Spiffe | IssuerKind::Jwt { subject: SubjectMapping::Identifier } => {
            (claims.sub.clone(), None)
        }
        IssuerKind::Jwt { subject: SubjectMapping::Kubernetes } => {
            let kubernetes = service_account(claims)?;
            let Kubernetes { namespace, service_account, .. } = &kubernetes;
            (format!("wimse://{trust_domain}/ns/{namespace}/sa/{service_account}"), Some(kubernetes))
        }
        IssuerKind::Jwt { subject: SubjectMapping::Opaque } if is_path_segment(&claims.sub) => {
            (format!("wimse://{trust_domain}/sub/{}", claims.sub), None)
        }
        IssuerKind::Jwt { subject: SubjectMapping::Opaque } => {
            (format!("wimse://{trust_domain}/sub64/{}", URL_SAFE_NO_PAD.encode(&claims.sub)), None)
        }
    };
    let id: WorkloadId = text.parse().map_err(|_| Error::SubjectMalformed)?;
    if !issuer.trust_domains.contains(id.trust_domain()) {
        return Err(Error::TrustDomainNotAllowed);
    }
    Ok((id, kubernetes))
}

fn service_account(claims: &Claims) -> Result<Kubernetes, Error> {
    let rest = claims.sub.strip_prefix("system:serviceaccount:").ok_or(Error::SubjectMalformed)?;
    let (namespace, name) = rest.split_once(':').ok_or(Error::SubjectMalformed)?;
    // Colon and slash are not allowed in a segment, so a name cannot extend into another segment.
    if !is_path_segment(namespace) || !is_path_segment(name) {
        return Err(Error::SubjectMalformed);
    }
    let pod = match claims.others.get("kubernetes.io") {
        None => None,
        Some(bound) => {
            let text = |pointer: &str| bound.pointer(pointer).and_then(Value::as_str);
            if text("/namespace") != Some(namespace) || text("/serviceaccount/name") != Some(name) {
                return Err(Error::SubjectDisagrees);
            }
            text("/pod/name").map(ToOwned::to_owned)
        }
    };
    Ok(Kubernetes { namespace: namespace.to_owned(), service_account: name.to_owned(), pod })
}
