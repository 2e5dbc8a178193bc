//! The client of what this product calls by itself: one request with every limit on it.
//!
//! No redirect is followed, no proxy is taken from the environment, nothing is decompressed, no cookie is kept. Whom
//! it may call says the [`Guard`], of the URL before the call and of each address when it connects.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use chrono::DateTime;
use reqwest::header::{self, HeaderMap, HeaderName};
use reqwest::{Identity, RequestBuilder, Response, StatusCode, Url, redirect};

use super::address::{Calls, Kind};
use super::call_limit::{Place, Places, Share};
use super::guard::{Guard, PushUrl, Refused, UrlError};
use super::resolver::{Guarded, Lookup, Machine, NoLookup};
use crate::limits;

/// Why there is no answer that can be used. Without addresses: who asked for the call may read it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The URL is not one that may be called.
    #[error("address {0}")]
    Url(#[from] UrlError),
    /// The host's name leads to no address that may be called. What it leads to is for the operator.
    #[error("address of the host is not one that this node may call")]
    AddressRefused(Kind),
    /// The client could not be built from the machine's certificates.
    #[error("http client could not be prepared")]
    Unprepared,
    /// This node does too much at once to ask for the host's address: that is no fault of the host.
    #[error("no place among the calls of this node")]
    NoPlace,
    /// No connection, or it broke.
    #[error("host could not be reached")]
    Unreachable,
    /// Not complete in time.
    #[error("host did not answer in time")]
    TimedOut,
    /// The host answered with a redirect, which is never followed.
    #[error("host answered with a redirect")]
    Redirected,
    /// Any other answer than 200 where a document was fetched.
    #[error("host answered with status {0}")]
    Status(u16),
    /// The answer is larger than the limit.
    #[error("answer is too large")]
    TooLarge,
}

/// What one client may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Total time of one fetch, waiting for a place, connecting and reading included.
    pub timeout: Duration,
    /// Largest document.
    pub bytes_max: usize,
    /// Longest wait for the place of a push.
    pub push_place_wait: Duration,
    /// Total time of one push that has its place, in the same way.
    pub push_timeout: Duration,
    /// Largest answer to a push that is read.
    pub answer_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: limits::FETCH_TIMEOUT,
            bytes_max: limits::FETCH_BYTES_MAX,
            push_place_wait: limits::PUSH_PLACE_WAIT_MAX,
            push_timeout: limits::PUSH_TIMEOUT,
            answer_bytes_max: limits::PUSH_ANSWER_BYTES_MAX,
        }
    }
}

/// What a receiver says to a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushAnswer {
    /// HTTP status, never one of a redirect.
    pub status: u16,
    /// How long it asks not to be called (RFC 9110 §10.2.3).
    pub retry_after: Option<Duration>,
    /// Not decompressed. It is read of 400 and 403, which may hold an `err` (RFC 8935 §2.3).
    pub body: Vec<u8>,
}

/// A place among the pushes, for one of them. Dropping it frees it.
#[derive(Debug)]
pub struct PushPlace {
    url: PushUrl,
    _place: Place,
}

/// The HTTP client. Cheap to clone; clones share connections and places.
#[derive(Clone, Debug)]
pub struct Client {
    guard: Guard,
    limits: Limits,
    /// Pushes and fetches have nothing in common: a connection that one may open is none that the other may use, and
    /// receivers that do not answer take no place of issuers' keys.
    pushes: Line,
    fetches: Line,
}

/// Connections, and how many calls may be under way.
#[derive(Clone, Debug)]
struct Line {
    http: Arc<ArcSwap<reqwest::Client>>,
    places: Places,
}

impl Client {
    /// A client with its own connections.
    ///
    /// # Errors
    /// [`Error::Unprepared`].
    pub fn new(limits: Limits, guard: Guard) -> Result<Self, Error> {
        Self::with_lookups(limits, guard, || Arc::new(Machine::new()))
    }

    fn with_lookups(
        limits: Limits,
        guard: Guard,
        lookup: impl Fn() -> Arc<dyn Lookup>,
    ) -> Result<Self, Error> {
        let line = |calls| Line::new(Guarded { guard: guard.clone(), calls, lookup: lookup() });
        let (pushes, fetches) = (line(Calls::Push)?, line(Calls::Keys)?);
        Ok(Self { guard, limits, pushes, fetches })
    }

    /// Presents a client certificate with every push from now on (RFC 8935 §4): certificate and private key as one PEM
    /// text. Connections that presented another are not used again.
    ///
    /// # Errors
    /// [`Error::Unprepared`], also if the text holds no usable pair; the certificate before stays in use.
    pub fn present(&self, pem: &[u8]) -> Result<(), Error> {
        let guarded =
            Guarded { guard: self.guard.clone(), calls: Calls::Push, lookup: Arc::new(Machine::new()) };
        self.pushes.http.store(Arc::new(http(guarded, Some(pem))?));
        Ok(())
    }

    /// What says whom this client may call.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The document at `address`, which issuers' keys may be fetched from.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn fetch(&self, address: &str) -> Result<Vec<u8>, Error> {
        let url = self.guard.checked(address, Calls::Keys)?;
        let within = self.limits.timeout;
        self.fetches
            .call(&url, within, async {
                let answer = send(self.fetches.http.load().get(url.clone())).await?;
                if answer.status() != StatusCode::OK {
                    return Err(Error::Status(answer.status().as_u16()));
                }
                read(answer, self.limits.bytes_max).await
            })
            .await
    }

    /// A place for a push to `url` on behalf of `owner`, whose pushes take their share of the places and no more;
    /// [`Error::NoPlace`] if there is none in time.
    ///
    /// # Errors
    /// [`Error::NoPlace`].
    pub async fn push_place(&self, url: PushUrl, owner: &str) -> Result<PushPlace, Error> {
        let (owner, host) = (owner.to_owned(), host_of(url.url()));
        let shares = [
            (Share::OwnerAtHost(owner.clone(), host.clone()), limits::PUSHES_PER_OWNER_AT_HOST_MAX),
            (Share::Owner(owner), limits::PUSHES_PER_OWNER_MAX),
            (Share::Host(host), limits::OUTBOUND_PER_HOST_MAX),
        ];
        let place = tokio::time::timeout(self.limits.push_place_wait, self.pushes.places.take(shares)).await;
        let place = place.ok().flatten().ok_or(Error::NoPlace)?;
        Ok(PushPlace { url, _place: place })
    }

    /// Pushes a security event token (RFC 8935 §2). Every answer but a redirect is one.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn push(&self, place: PushPlace, body: String) -> Result<PushAnswer, Error> {
        let url = place.url.url();
        // By these rules, should another guard have made the URL.
        self.guard.judge(url, Calls::Push)?;
        let request = self.pushes.http.load().post(url.clone());
        let request = request
            .header(header::CONTENT_TYPE, "application/secevent+jwt")
            .header(header::ACCEPT, "application/json")
            .body(body);
        let pushed = async {
            let answer = send(request).await?;
            let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
            // Whoever took an event has it, however its answer goes on.
            let body = match status {
                StatusCode::BAD_REQUEST => read(answer, self.limits.answer_bytes_max).await?,
                // Its `err`, if there is one: the status counts also without it.
                StatusCode::FORBIDDEN => {
                    let body = read(answer, self.limits.answer_bytes_max);
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

impl Line {
    fn new(resolver: Guarded) -> Result<Self, Error> {
        let http = Arc::new(ArcSwap::from_pointee(http(resolver, None)?));
        Ok(Self { http, places: Places::new(limits::OUTBOUND_CALLS_MAX) })
    }

    /// `call`, when there is a place for the host of `url`; all of it `within` its time.
    async fn call<T>(
        &self,
        url: &Url,
        within: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let in_turn = async {
            let share = (Share::Host(host_of(url)), limits::OUTBOUND_PER_HOST_MAX);
            let _place = self.places.take([share]).await;
            call.await
        };
        tokio::time::timeout(within, in_turn).await.unwrap_or(Err(Error::TimedOut))
    }
}

/// Connections through `resolver`, with a client certificate if there is one.
fn http(resolver: Guarded, certificate: Option<&[u8]>) -> Result<reqwest::Client, Error> {
    let unprepared = |_| Error::Unprepared;
    let mut http = reqwest::Client::builder()
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
        .pool_idle_timeout(limits::OUTBOUND_IDLE_MAX)
        .dns_resolver(Arc::new(resolver));
    if let Some(pem) = certificate {
        http = http.identity(Identity::from_pem(pem).map_err(unprepared)?);
    }
    http.build().map_err(unprepared)
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

async fn send(request: RequestBuilder) -> Result<Response, Error> {
    let answer = request.send().await.map_err(|error| reason(&error))?;
    if answer.status().is_redirection() { Err(Error::Redirected) } else { Ok(answer) }
}

async fn read(mut answer: Response, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    // The stated length is not believed: what counts is what arrives.
    while let Some(chunk) = answer.chunk().await.map_err(|error| reason(&error))? {
        if body.len() + chunk.len() > bytes_max {
            return Err(Error::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn reason(error: &reqwest::Error) -> Error {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refused(kind)) = error.downcast_ref() {
            return Error::AddressRefused(*kind);
        }
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if within.and_then(|within| within.downcast_ref::<NoLookup>()).is_some() {
            return Error::NoPlace;
        }
        cause = error.source();
    }
    if error.is_timeout() { Error::TimedOut } else { Error::Unreachable }
}

/// In seconds, or as a date, which is read against the answer's own: its clock may differ from ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let stated = text(header::RETRY_AFTER)?;
    if stated.bytes().all(|byte| byte.is_ascii_digit()) && !stated.is_empty() {
        // A number that has no place in 32 bits is as good as the largest that has.
        return Some(Duration::from_secs(stated.parse::<u32>().unwrap_or(u32::MAX).into()));
    }
    let date = |text: &str| DateTime::parse_from_rfc2822(text).ok();
    let wait = date(stated)?.signed_duration_since(date(text(header::DATE)?)?);
    Some(wait.to_std().unwrap_or_default())
}

#[cfg(test)]
mod tests;
