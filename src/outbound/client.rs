//! The HTTP client of the product's own calls: one request with limits on everything.
//!
//! It follows no redirect, takes no proxy from the environment, decompresses nothing and stores no cookie. The
//! [`Guard`] checks the URL before the call, and each address when it connects.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use chrono::DateTime;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, ClientBuilder, Identity, RequestBuilder, Response, StatusCode, Url, redirect};

use super::address::{Kind, Purpose};
use super::call_limit::{CallLimiter, CallPermit};
use super::guard::{BlockedAddress, Guard, PushUrl, UrlError};
use super::resolver::{GuardedResolver, Lookup, LookupLimitReached, SystemResolver};
use crate::limits;

/// Failure of a call. It names no address, because the client that caused the call may read it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The guard refuses the URL.
    #[error("address {0}")]
    Url(#[from] UrlError),
    /// The host's name resolves to no allowed address; the addresses are for the operator's log only.
    #[error("host resolves to no address that this node may call")]
    AddressRefused(Kind),
    /// The client could not be built from the host's certificates.
    #[error("http client could not be prepared")]
    Unprepared,
    /// A concurrency limit of this node was reached; the host is not at fault.
    #[error("outbound call limit of this node reached")]
    LimitReached,
    /// No connection, or it was closed.
    #[error("host could not be reached")]
    Unreachable,
    #[error("host did not answer in time")]
    TimedOut,
    /// The host answered with a redirect, which is not followed.
    #[error("host answered with a redirect")]
    Redirected,
    /// Another status than 200 for a fetch.
    #[error("host answered with status {0}")]
    Status(u16),
    /// The response exceeds the limit.
    #[error("response is too large")]
    TooLarge,
}

#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Total time of one fetch, including the wait for a permit.
    pub timeout: Duration,
    /// Maximum document size.
    pub bytes_max: usize,
    /// Maximum wait for the permit of a push.
    pub push_permit_wait: Duration,
    /// Total time of one push after its permit was granted.
    pub push_timeout: Duration,
    /// Maximum bytes read of the response to a push.
    pub response_bytes_max: usize,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            timeout: limits::FETCH_TIMEOUT,
            bytes_max: limits::FETCH_BYTES_MAX,
            push_permit_wait: limits::PUSH_PERMIT_WAIT_MAX,
            push_timeout: limits::PUSH_TIMEOUT,
            response_bytes_max: limits::PUSH_RESPONSE_BYTES_MAX,
        }
    }
}

/// Response of a receiver to a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushAnswer {
    /// HTTP status, not a redirect.
    pub status: u16,
    /// Requested pause (RFC 9110 §10.2.3).
    pub retry_after: Option<Duration>,
    /// Not decompressed. Read only for 400 and 403, which may contain an `err` (RFC 8935 §2.3).
    pub body: Vec<u8>,
}

#[derive(Debug)]
pub struct PushPermit {
    url: PushUrl,
    _permit: CallPermit,
}

/// Roots and a credential for the fetch of a document.
#[derive(Debug, Default)]
pub struct FetchCredentials {
    /// The only roots of the connection; `None`: those of the system.
    pub roots: Option<Vec<Certificate>>,
    /// `Authorization`.
    pub authorization: Option<HeaderValue>,
}

/// The HTTP client. Cheap to clone; clones share connections and limits.
#[derive(Clone, Debug)]
pub struct Client {
    guard: Guard,
    limits: CallLimits,
    /// Pushes and fetches share nothing: a connection of one kind must not be used by the other, and receivers that do
    /// not respond must not block the fetch of issuer keys.
    pushes: CallPool,
    fetches: CallPool,
}

/// Connections and concurrency limit of one kind of call.
#[derive(Clone, Debug)]
struct CallPool {
    resolver: GuardedResolver,
    http: Arc<ArcSwap<reqwest::Client>>,
    limiter: CallLimiter,
}

impl Client {
    /// A client with its own connections.
    ///
    /// # Errors
    /// [`Error::Unprepared`].
    pub fn new(limits: CallLimits, guard: Guard) -> Result<Self, Error> {
        Self::with_lookups(limits, guard, || Arc::new(SystemResolver::new()))
    }

    fn with_lookups(
        limits: CallLimits,
        guard: Guard,
        lookup: impl Fn() -> Arc<dyn Lookup>,
    ) -> Result<Self, Error> {
        let pool =
            |purpose| CallPool::new(GuardedResolver { guard: guard.clone(), purpose, lookup: lookup() });
        let (pushes, fetches) = (pool(Purpose::Push)?, pool(Purpose::Keys)?);
        Ok(Self { guard, limits, pushes, fetches })
    }

    /// Presents a client certificate with every later push (RFC 8935 §4): certificate and private key as one PEM text.
    /// Connections with the previous certificate are not reused.
    ///
    /// # Errors
    /// [`Error::Unprepared`], also if the text holds no usable pair; the previous certificate stays in use.
    pub fn present(&self, pem: &[u8]) -> Result<(), Error> {
        let identity = Identity::from_pem(pem).map_err(|_| Error::Unprepared)?;
        let resolver = self.pushes.resolver.clone();
        self.pushes.http.store(Arc::new(http(resolver, |http| http.identity(identity))?));
        Ok(())
    }

    /// The guard of this client.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Fetches the document at `address`, a location of issuer keys.
    pub async fn fetch(&self, address: &str) -> Result<Vec<u8>, Error> {
        self.fetch_with(address, &FetchCredentials::default()).await
    }

    /// Fetches the document with these roots and this credential. With roots, the connection is not kept.
    pub async fn fetch_with(&self, address: &str, credentials: &FetchCredentials) -> Result<Vec<u8>, Error> {
        let url = self.guard.checked(address, Purpose::Keys)?;
        let http = match credentials.roots.clone() {
            None => reqwest::Client::clone(&self.fetches.http.load()),
            Some(roots) => http(self.fetches.resolver.clone(), |http| http.tls_certs_only(roots))?,
        };
        let mut request = http.get(url.clone());
        if let Some(authorization) = &credentials.authorization {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        let within = self.limits.timeout;
        self.fetches
            .call(&url, within, async {
                let response = send(request).await?;
                if response.status() != StatusCode::OK {
                    return Err(Error::Status(response.status().as_u16()));
                }
                read(response, self.limits.bytes_max).await
            })
            .await
    }

    /// A permit for a push to `url` on behalf of `owner`, whose concurrent pushes are limited.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if none was free in time.
    pub async fn push_permit(&self, url: PushUrl, owner: &str) -> Result<PushPermit, Error> {
        let permit = self.pushes.limiter.acquire_for(owner, host_of(url.url()));
        let permit = tokio::time::timeout(self.limits.push_permit_wait, permit).await;
        let permit = permit.ok().flatten().ok_or(Error::LimitReached)?;
        Ok(PushPermit { url, _permit: permit })
    }

    /// Pushes a security event token (RFC 8935 §2). Every response but a redirect is a result.
    pub async fn push(&self, permit: PushPermit, body: String) -> Result<PushAnswer, Error> {
        let url = permit.url.url();
        // Checked again: another guard may have created the URL.
        self.guard.check(url, Purpose::Push)?;
        let request = self.pushes.http.load().post(url.clone());
        let request = request
            .header(header::CONTENT_TYPE, "application/secevent+jwt")
            .header(header::ACCEPT, "application/json")
            .body(body);
        let pushed = async {
            let response = send(request).await?;
            let (status, retry_after) = (response.status(), retry_after(response.headers()));
            // A receiver that reports success has the event, even if its response is malformed.
            let body = match status {
                StatusCode::BAD_REQUEST => read(response, self.limits.response_bytes_max).await?,
                // The body may contain an `err`; the status counts without it.
                StatusCode::FORBIDDEN => {
                    let body = read(response, self.limits.response_bytes_max);
                    tokio::time::timeout(limits::PUSH_REFUSAL_BODY_WAIT, body)
                        .await
                        .map_or_else(|_| Vec::new(), Result::unwrap_or_default)
                }
                _ => Vec::new(),
            };
            Ok(PushAnswer { status: status.as_u16(), retry_after, body })
        };
        tokio::time::timeout(self.limits.push_timeout, pushed).await.unwrap_or(Err(Error::TimedOut))
    }
}

impl CallPool {
    fn new(resolver: GuardedResolver) -> Result<Self, Error> {
        let http = Arc::new(ArcSwap::from_pointee(http(resolver.clone(), |http| http)?));
        Ok(Self { resolver, http, limiter: CallLimiter::new() })
    }

    /// Runs `call` once there is a permit for the host of `url`; both take at most `within`.
    async fn call<T>(
        &self,
        url: &Url,
        within: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let in_turn = async {
            let _permit = self.limiter.acquire(host_of(url)).await;
            call.await
        };
        tokio::time::timeout(within, in_turn).await.unwrap_or(Err(Error::TimedOut))
    }
}

/// Connections through `resolver`, with certificates that `extend` adds.
fn http(
    resolver: GuardedResolver,
    extend: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<reqwest::Client, Error> {
    // Issuers and receivers are called over HTTP/1.1.
    extend(builder(resolver).http1_only()).build().map_err(|_| Error::Unprepared)
}

/// The rules of every outbound call.
pub(super) fn builder(resolver: GuardedResolver) -> ClientBuilder {
    reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd()
        .retry(reqwest::retry::never())
        .connect_timeout(limits::OUTBOUND_CONNECT_TIMEOUT)
        .pool_max_idle_per_host(limits::OUTBOUND_IDLE_PER_HOST_MAX)
        .pool_idle_timeout(limits::OUTBOUND_IDLE_TIMEOUT)
        .dns_resolver(Arc::new(resolver))
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

async fn send(request: RequestBuilder) -> Result<Response, Error> {
    let response = request.send().await.map_err(|error| reason(&error))?;
    if response.status().is_redirection() { Err(Error::Redirected) } else { Ok(response) }
}

pub(super) async fn read(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    // The stated length is not trusted; received bytes count.
    while let Some(chunk) = response.chunk().await.map_err(|error| reason(&error))? {
        if body.len() + chunk.len() > bytes_max {
            return Err(Error::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

pub(super) fn reason(error: &reqwest::Error) -> Error {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(BlockedAddress(kind)) = error.downcast_ref() {
            return Error::AddressRefused(*kind);
        }
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if within.and_then(|within| within.downcast_ref::<LookupLimitReached>()).is_some() {
            return Error::LimitReached;
        }
        cause = error.source();
    }
    if error.is_timeout() { Error::TimedOut } else { Error::Unreachable }
}

/// Seconds, or a date compared with the `Date` of the response: the receiver's clock may differ from ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let stated = text(header::RETRY_AFTER)?;
    if stated.bytes().all(|byte| byte.is_ascii_digit()) && !stated.is_empty() {
        // A number beyond 32 bits counts as the maximum.
        return Some(Duration::from_secs(stated.parse::<u32>().unwrap_or(u32::MAX).into()));
    }
    let date = |text: &str| DateTime::parse_from_rfc2822(text).ok();
    let wait = date(stated)?.signed_duration_since(date(text(header::DATE)?)?);
    Some(wait.to_std().unwrap_or_default())
}

#[cfg(test)]
mod tests;
