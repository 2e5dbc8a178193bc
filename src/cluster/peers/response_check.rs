//! Client and server layers around every response: the server states the life of its process, and the client verifies
//! it before it passes the response on.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::metadata::{BinaryMetadataValue, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::Service;
use tower::util::MapResponseLayer;

use super::call_metadata::CallRejection;
use super::local_node::LocalNode;
use super::wire::proto;
use crate::cluster::codec;
use crate::cluster::corrupt::{REPLACE_ADVICE, RETURN_ADVICE};
use crate::cluster::disk_rollback::Life;
use crate::cluster::type_config::DiskId;

/// Response metadata that carries the life.
const KEY: &str = "trust-fabric-life-bin";

/// The status for a rejected call: its text, and the details on which the caller acts.
pub(crate) fn refused(rejection: &CallRejection) -> Status {
    use proto::refused::Why;
    let text = rejection.to_string();
    let with_details = |why| {
        let details = proto::Refused { why: Some(why) }.encode_to_vec();
        Status::with_details(Code::FailedPrecondition, text.clone(), details.into())
    };
    match rejection {
        CallRejection::Unstated => Status::invalid_argument(text),
        CallRejection::Identity { .. } => Status::permission_denied(text),
        CallRejection::DiskRollback { .. } => with_details(Why::SetBack(proto::SetBack {})),
        CallRejection::Contradiction(ours, _) => {
            with_details(Why::Contradiction(codec::log_id_to_proto(ours)))
        }
        CallRejection::Removed { .. } => with_details(Why::Removed(proto::Removed {})),
        _ => Status::failed_precondition(text),
    }
}

/// Adds the life of this process to every response.
pub(crate) fn stating<B>(
    life: &Life,
) -> MapResponseLayer<impl Fn(Response<B>) -> Response<B> + Clone + Send + 'static + use<B>> {
    let mut metadata = MetadataMap::new();
    let value: BinaryMetadataValue = MetadataValue::from_bytes(&codec::life_to_proto(life).encode_to_vec());
    metadata.insert_bin(KEY, value);
    let stated = metadata.into_headers();
    MapResponseLayer::new(move |mut response: Response<B>| {
        response.headers_mut().extend(stated.clone());
        response
    })
}

/// The life stated in response headers.
fn life(headers: &HeaderMap) -> Option<Life> {
    let stated = MetadataMap::from_headers(headers.clone());
    let bytes = stated.get_bin(KEY)?.to_bytes().ok()?;
    codec::life_from_proto(&codec::proto::Life::decode(bytes).ok()?).ok()
}

/// The reason in the details of a rejection.
fn reason(status: &Status) -> Option<proto::refused::Why> {
    proto::Refused::decode(status.details()).unwrap_or_default().why
}

/// A channel whose responses are verified.
#[derive(Clone)]
pub(crate) struct VerifiedChannel {
    pub(super) channel: Channel,
    pub(super) local: Arc<LocalNode>,
    pub(super) to: u64,
    pub(super) to_disk: Option<DiskId>,
}

impl VerifiedChannel {
    /// Verifies the life in response headers. Skipped while the disk of the node is unknown, as in `Hello`.
    fn verify_life(&self, headers: &HeaderMap) -> Result<(), Status> {
        let status = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
        // Another node at the address of a member rejects the call without such a reason.
        let is_called = status.as_ref().is_none_or(|status| reason(status).is_some());
        match (life(headers), self.to_disk) {
            (Some(life), Some(disk_id)) if is_called => {
                self.local.disk_records.record_life((self.to, disk_id), &life).map_err(|why| {
                    let rejection = CallRejection::DiskRollback { node: self.to, why };
                    self.local.failures.responses.failed(&self.to, &rejection);
                    Status::failed_precondition(rejection.to_string())
                })?;
                self.local.failures.responses.succeeded(&self.to);
            }
            (None, Some(_)) if status.is_none() => {
                return Err(Status::failed_precondition(
                    "the response does not state the life of its process",
                ));
            }
            _ => {}
        }
        if let Some(status) = status {
            self.handle_rejection(&status);
        }
        Ok(())
    }

    fn handle_rejection(&self, status: &Status) {
        use proto::refused::Why;
        match (reason(status), self.to_disk) {
            (Some(Why::SetBack(_)), _) => {
                let reason = format!("rejected by node {}: {}; {REPLACE_ADVICE}", self.to, status.message());
                self.local.stop_for_good(reason);
            }
            (Some(Why::Removed(_)), Some(_)) => {
                let reason = format!("rejected by node {}: {}; {RETURN_ADVICE}", self.to, status.message());
                self.local.stop_for_good(reason);
            }
            (Some(Why::Contradiction(theirs)), Some(disk_id)) => {
                if let Ok(theirs) = codec::log_id_from_proto(theirs) {
                    self.local.disk_records.contradicts((self.to, disk_id), theirs);
                }
            }
            _ => {}
        }
    }
}

impl Service<Request<Body>> for VerifiedChannel {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.channel.call(request);
        let verifier = self.clone();
        Box::pin(async move {
            let response = response.await?;
            Ok(match verifier.verify_life(response.headers()) {
                Ok(()) => response,
                Err(status) => status.into_http(),
            })
        })
    }
}
