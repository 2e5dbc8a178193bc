//! The trailer: a skippable frame of zstd with a mark and the SHA-256 of everything before it. Any changed byte and any
//! missing end is noticed before a byte is decoded.

use aws_lc_rs::digest;

use super::{Error, sha256};

/// Magic number of a zstd frame (RFC 8878 §3.1.1).
const FRAME_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// Magic number of a skippable frame (RFC 8878 §3.1.2), the size of its content, and a mark.
const HEAD: [u8; 16] = *b"\x5B\x2A\x4D\x18\x28\0\0\0TFBACKUP";
const DIGEST_BYTES: usize = digest::SHA256_OUTPUT_LEN;
const BYTES: usize = HEAD.len() + DIGEST_BYTES;

/// The trailer after bytes with this digest.
pub(super) fn trailer(whole: digest::Context) -> Vec<u8> {
    [&HEAD[..], whole.finish().as_ref()].concat()
}

/// Checks the digest of a backup whose bytes are pushed one after the other.
pub(crate) struct DigestCheck {
    context: digest::Context,
    /// The last bytes, which may be the trailer.
    tail: Vec<u8>,
    first: Vec<u8>,
}

impl Default for DigestCheck {
    fn default() -> Self {
        Self { context: sha256(), tail: Vec::new(), first: Vec::new() }
    }
}

impl DigestCheck {
    /// Adds the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let missing = FRAME_MAGIC.len() - self.first.len();
        self.first.extend(bytes.iter().take(missing));
        self.tail.extend_from_slice(bytes);
        let complete = self.tail.len().saturating_sub(BYTES);
        self.context.update(&self.tail[..complete]);
        self.tail.drain(..complete);
    }

    /// The verdict after the last byte.
    ///
    /// # Errors
    /// [`Error::NotABackup`], [`Error::Truncated`], [`Error::Changed`].
    pub(crate) fn finish(self) -> Result<(), Error> {
        if self.first != FRAME_MAGIC {
            return Err(Error::NotABackup("it is not compressed with zstd".to_owned()));
        }
        let Some(digest) = self.tail.strip_prefix(&HEAD) else { return Err(Error::Truncated) };
        if digest == self.context.finish().as_ref() { Ok(()) } else { Err(Error::Changed) }
    }
}
