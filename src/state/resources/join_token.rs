//! Join tokens: single-use secrets that carry a cluster id and a node id. The state has the digest of the secret only.

use std::fmt;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const PREFIX: &str = "tfj1.";
/// Cluster id, node id, secret.
const BODY_BYTES: usize = 16 + 8 + 32;
const CHECKSUM_BYTES: usize = 4;
const TEXT_CHARS: usize = PREFIX.len() + (BODY_BYTES + CHECKSUM_BYTES) / 3 * 4;

/// A join token. Its text is `tfj1.` and the base64url of cluster id (16 bytes), node id (8, big endian), secret (32),
/// and the first 4 bytes of the SHA-256 of these.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub cluster_id: [u8; 16],
    /// Node id of its holder.
    pub node_id: u64,
    secret: [u8; 32],
}

/// Reason why a text is not a join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJoinToken {
    /// It has another prefix.
    #[error("the join token must begin with {PREFIX}")]
    Prefix,
    /// It is too short or too long.
    #[error("the join token must have {TEXT_CHARS} characters")]
    Length,
    /// It is not base64url, or its checksum does not match.
    #[error("the join token is incomplete or altered")]
    Checksum,
}

impl JoinToken {
    /// The token of a node id, with a secret that the caller has drawn at random.
    #[must_use]
    pub const fn new(cluster_id: [u8; 16], node_id: u64, secret: [u8; 32]) -> Self {
        Self { cluster_id, node_id, secret }
    }

    /// Parses the text of a token.
    ///
    /// # Errors
    /// [`InvalidJoinToken`].
    pub fn parse(text: &str) -> Result<Self, InvalidJoinToken> {
        let encoded = text.strip_prefix(PREFIX).ok_or(InvalidJoinToken::Prefix)?;
        if text.len() != TEXT_CHARS {
            return Err(InvalidJoinToken::Length);
        }
        let altered = InvalidJoinToken::Checksum;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| altered)?;
        let (body, stated) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(altered)?;
        if checksum(body) != *stated {
            return Err(altered);
        }
        let (cluster_id, rest) = body.split_first_chunk().ok_or(altered)?;
        let (node_id, secret) = rest.split_first_chunk().ok_or(altered)?;
        let secret = secret.try_into().map_err(|_| altered)?;
        Ok(Self { cluster_id: *cluster_id, node_id: u64::from_be_bytes(*node_id), secret })
    }

    /// The text of the token, which is a secret.
    #[must_use]
    pub fn secret_text(&self) -> String {
        let body = [&self.cluster_id[..], &self.node_id.to_be_bytes(), &self.secret].concat();
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([&body[..], &checksum(&body)].concat()))
    }

    /// Digest of the secret, as the state has it.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Self::digest_of(&self.secret)
    }

    /// SHA-256 of a secret.
    #[must_use]
    pub fn digest_of(secret: &[u8; 32]) -> [u8; 32] {
        sha256(secret)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    digest
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [a, b, c, d, ..] = sha256(body);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken::new([0xab; 16], 4, [0xcd; 32])
    }

    #[test]
    fn text_is_stable_and_parsed() {
        let text = token().secret_text();
        assert_eq!(text.len(), TEXT_CHARS);
        let bytes = URL_SAFE_NO_PAD.decode(&text[5..]).expect("base64url");
        assert_eq!(bytes[..24], [&[0xab; 16][..], &[0, 0, 0, 0, 0, 0, 0, 4]].concat());
        assert_eq!(bytes[24..56], [0xcd; 32]);
        assert_eq!(JoinToken::parse(&text), Ok(token()));
        assert_eq!(token().digest(), JoinToken::digest_of(&[0xcd; 32]));
    }

    #[test]
    fn altered_character_is_found_at_every_position() {
        let text = token().secret_text();
        for at in PREFIX.len()..text.len() {
            let mut altered = text.clone().into_bytes();
            altered[at] = if altered[at] == b'x' { b'y' } else { b'x' };
            let altered = String::from_utf8(altered).expect("ASCII");
            assert_eq!(JoinToken::parse(&altered), Err(InvalidJoinToken::Checksum), "{at}");
        }
        let padded = format!("{}=", &text[..text.len() - 1]);
        assert_eq!(JoinToken::parse(&padded), Err(InvalidJoinToken::Checksum));
    }

    #[test]
    fn wrong_prefix_and_wrong_length_are_named() {
        let text = token().secret_text();
        for other in ["", "tfj", &text[1..], &text.replace("tfj1", "tfj2"), &format!(" {text}")] {
            assert_eq!(JoinToken::parse(other), Err(InvalidJoinToken::Prefix), "{other}");
        }
        for other in [PREFIX, &text[..text.len() - 1], &format!("{text}A"), &format!("{text}\n")] {
            assert_eq!(JoinToken::parse(other), Err(InvalidJoinToken::Length), "{other}");
        }
    }

    #[test]
    fn debug_output_and_errors_have_no_secret() {
        assert_eq!(format!("{:?}", token()), "JoinToken { node_id: 4, .. }");
        let error = InvalidJoinToken::Checksum.to_string();
        assert_eq!(error, "the join token is incomplete or altered");
    }
}
