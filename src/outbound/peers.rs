//! Calls to the nodes of a peer fabric: mutual TLS with the roots of that peer alone, HTTP/2 only, and the limits of
//! every outbound call.
//!
//! A host name proves nothing: the certificate of the node must have one of the peer's SPIFFE IDs as its only URI name.
//! A change of our certificate or of the peer's roots ends the calls that were made under the previous ones. A connection
//! serves calls for [`limits::TLS_CONNECTION_AGE_MAX`], so that the node's certificate is verified again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::{RequestBuilder, StatusCode, Url, header};

use super::address::Purpose;
use super::client::{self, builder, read, reason};
use super::guard::{Guard, UrlError};
use super::resolver::{GuardedResolver, SystemResolver};
use crate::clock::Clock;
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;
use crate::tls::{Tls, outbound_failure};

/// An address of a peer: an `https` URL that the guard has checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Url);

impl Endpoint {
    /// Reads the address of a document.
    ///
    /// # Errors
    /// [`UrlError`], also for plain HTTP.
    pub fn document(text: &str, guard: &Guard) -> Result<Self, UrlError> {
        guard.checked(text, Purpose::Peer).map(Self)
    }

    /// Reads the base address of a node, which has no path and no query.
    ///
    /// # Errors
    /// [`UrlError`], also for plain HTTP.
    pub fn base(text: &str, guard: &Guard) -> Result<Self, UrlError> {
        let endpoint = Self::document(text, guard)?;
        if endpoint.0.path() == "/" && endpoint.0.query().is_none() {
            Ok(endpoint)
        } else {
            Err(UrlError::Path)
        }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Response of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerResponse {
    /// HTTP status, not a redirect.
    pub status: u16,
    pub body: Bytes,
}

/// Failure of a call to a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerCallError {
    #[error(transparent)]
    Call(#[from] client::Error),
    /// No TLS connection: a certificate of either side is refused.
    #[error("tls: {0}")]
    Tls(String),
    /// Our certificate or the peer's roots changed during the call.
    #[error("certificates or roots changed during the call")]
    Reloaded,
}

/// Connections to the nodes of one peer. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct PeerClient(Arc<Shared>);

struct Shared {
    tls: Tls,
    trust_domain: TrustDomain,
    ids: Arc<BTreeSet<WorkloadId>>,
    guard: Guard,
    resolver: GuardedResolver,
    clock: Clock,
    current: Mutex<Option<Connections>>,
}

/// Connections made under one generation of the TLS configuration.
#[derive(Clone)]
struct Connections {
    http: reqwest::Client,
    generation: u64,
    /// Time since boot.
    since: Duration,
}

impl PeerClient {
    /// Calls nodes with one of `ids`, all of `trust_domain`, whose roots `tls` has.
    #[must_use]
    pub fn new(
        tls: Tls,
        trust_domain: TrustDomain,
        ids: BTreeSet<WorkloadId>,
        guard: Guard,
        clock: Clock,
    ) -> Self {
        let (current, lookup) = (Mutex::new(None), Arc::new(SystemResolver::new()));
        let resolver = GuardedResolver { guard: guard.clone(), purpose: Purpose::Peer, lookup };
        Self(Arc::new(Shared { tls, trust_domain, ids: Arc::new(ids), guard, resolver, clock, current }))
    }

    /// Posts JSON to `path` of a node. Every response but a redirect is a result.
    ///
    /// # Errors
    /// [`PeerCallError`].
    pub async fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        body: Bytes,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<PeerResponse, PeerCallError> {
        let mut url = endpoint.0.clone();
        url.set_path(path);
        self.check(&url)?;
        let Connections { http, generation, .. } = self.connections()?;
        let request = http.post(url).header(header::CONTENT_TYPE, "application/json").body(body);
        self.call(request, generation, timeout, bytes_max).await
    }

    /// Fetches the peer's bundle. No certificate is presented (SPIFFE Federation §5.2.2 needs none), because the peer
    /// need not know this fabric.
    ///
    /// # Errors
    /// [`PeerCallError`], also for another status than 200.
    pub async fn bundle(&self, endpoint: &Endpoint) -> Result<Bytes, PeerCallError> {
        self.check(&endpoint.0)?;
        let generation = self.generation();
        let request = self.build(false)?.get(endpoint.0.clone());
        let (within, bytes_max) = (limits::FETCH_TIMEOUT, limits::FETCH_BYTES_MAX);
        let response = self.call(request, generation, within, bytes_max).await?;
        if response.status == StatusCode::OK.as_u16() {
            Ok(response.body)
        } else {
            Err(client::Error::Status(response.status).into())
        }
    }

    fn check(&self, url: &Url) -> Result<(), client::Error> {
        Ok(self.0.guard.check(url, Purpose::Peer)?)
    }

    async fn call(
        &self,
        request: RequestBuilder,
        generation: u64,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<PeerResponse, PeerCallError> {
        let answered = async {
            let response = request.send().await.map_err(|error| failure(&error))?;
            let status = response.status();
            if status.is_redirection() {
                return Err(client::Error::Redirected.into());
            }
            let body = read(response, bytes_max).await?.into();
            Ok(PeerResponse { status: status.as_u16(), body })
        };
        tokio::select! {
            answered = tokio::time::timeout(timeout, answered) => {
                answered.unwrap_or(Err(client::Error::TimedOut.into()))
            }
            () = self.0.tls.until_changed(generation, &self.0.trust_domain) => Err(PeerCallError::Reloaded),
        }
    }

    /// Read before the configuration is, so that no change falls between the two.
    fn generation(&self) -> u64 {
        *self.0.tls.changes().borrow()
    }

    /// The connections under the present configuration. Dropping the previous ones closes them.
    fn connections(&self) -> Result<Connections, PeerCallError> {
        let Shared { tls, trust_domain, clock, current, .. } = &*self.0;
        let now = clock.boot();
        let mut current = current.lock();
        if let Some(connections) = current.as_ref()
            && !tls.has_changed(connections.generation, Some(trust_domain))
            && now.saturating_sub(connections.since) < limits::TLS_CONNECTION_AGE_MAX
        {
            return Ok(connections.clone());
        }
        let generation = self.generation();
        Ok(current.insert(Connections { http: self.build(true)?, generation, since: now }).clone())
    }

    fn build(&self, presents_certificate: bool) -> Result<reqwest::Client, PeerCallError> {
        let Shared { tls, ids, resolver, .. } = &*self.0;
        let http = builder(resolver.clone())
            .https_only(true)
            .http2_prior_knowledge()
            .http2_keep_alive_interval(limits::PEER_FABRIC_PING_INTERVAL)
            .http2_keep_alive_timeout(limits::PEER_FABRIC_PING_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .tls_backend_preconfigured(tls.client_of(Arc::clone(ids), presents_certificate));
        Ok(http.build().map_err(|_| client::Error::Unprepared)?)
    }
}

fn failure(error: &reqwest::Error) -> PeerCallError {
    outbound_failure(error).map_or_else(|| reason(error).into(), |reason| PeerCallError::Tls(reason.into()))
}

#[cfg(test)]
mod tests;
