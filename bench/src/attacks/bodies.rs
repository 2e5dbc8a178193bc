//! Request bodies that are much larger once decompressed.

use std::io::Write as _;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{AttackContext, Outcome};
use crate::wire;

/// Size of the decompressed body.
const INFLATED_BYTES: usize = 1024 * 1024;

/// A megabyte of zeros, compressed, from a caller that may exchange: refused with 415, unread.
pub async fn compressed(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; INFLATED_BYTES])?;
    let body = encoder.finish()?;
    let target = field.node.target("workload")?;
    for coding in
        ["gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "gzip, identity", "gzip, gzip"]
    {
        let header = format!("content-encoding: {coding}\r\n");
        let request = wire::request_with("POST", "/v1/exchange/token", &target.host, &header, &body);
        let status = target.call(&request).await.map_or(0, |answer| answer.status);
        outcome.must_refuse(&format!("content-encoding {coding}"), status, &[415]);
    }
    Ok(outcome)
}
