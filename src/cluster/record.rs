//! The envelope of every stored record: format, checksum, payload.
//!
//! `[format: 1][crc32c of key and payload: 4, big endian][payload]`. The key is part of the
//! checksum, so a record that turns up under another key is as corrupt as a flipped byte.

/// The only format there is so far.
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 5;

/// Why a record cannot be used. Corruption stops the node; it is never skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Shorter than its header.
    #[error("record is truncated")]
    Truncated,
    /// Written by a version this one does not know.
    #[error("record has unknown format {0}")]
    UnknownFormat(u8),
    /// The bytes are not those that were written.
    #[error("record checksum does not match")]
    ChecksumMismatch,
}

/// Wraps `payload`, to be stored under `key`.
#[must_use]
pub fn seal(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
    record.push(FORMAT);
    record.extend_from_slice(&checksum(key, payload).to_be_bytes());
    record.extend_from_slice(payload);
    record
}

/// The payload of a record stored under `key`.
///
/// # Errors
/// As [`Error`] says.
pub fn open<'r>(key: &[u8], record: &'r [u8]) -> Result<&'r [u8], Error> {
    let (header, payload) = record.split_at_checked(HEADER_BYTES).ok_or(Error::Truncated)?;
    match *header {
        [FORMAT, a, b, c, d] if u32::from_be_bytes([a, b, c, d]) == checksum(key, payload) => Ok(payload),
        [FORMAT, ..] => Err(Error::ChecksumMismatch),
        [other, ..] => Err(Error::UnknownFormat(other)),
        [] => Err(Error::Truncated),
    }
}

fn checksum(key: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_opens_to_what_was_sealed() {
        assert_eq!(open(b"key", &seal(b"key", b"payload")), Ok(&b"payload"[..]));
        assert_eq!(open(b"key", &seal(b"key", b"")), Ok(&b""[..]));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let sealed = seal(b"key", b"payload");
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(b"key", &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_record_under_another_key_is_corrupt() {
        assert_eq!(open(b"kez", &seal(b"key", b"payload")), Err(Error::ChecksumMismatch));
    }

    #[test]
    fn a_truncated_record_is_refused() {
        let sealed = seal(b"key", b"payload");
        for length in 0..sealed.len() {
            assert!(open(b"key", &sealed[..length]).is_err(), "{length} bytes");
        }
    }
}
