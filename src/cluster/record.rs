//! Envelope of every stored record: format, checksum, payload.
//!
//! `[format: 1][crc32c of key and payload: 4, big endian][payload]`. The checksum covers the key, so a record under
//! another key is as corrupt as a flipped byte.

const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 5;

/// Corruption of a record. It stops the node; the record is never skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Shorter than its header.
    #[error("record is truncated")]
    Truncated,
    /// Unknown format byte.
    #[error("record has unknown format {0}")]
    UnknownFormat(u8),
    #[error("record checksum does not match")]
    ChecksumMismatch,
}

/// Seals `payload` for storage under `key`.
pub(crate) fn seal(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
    record.push(FORMAT);
    record.extend_from_slice(&checksum(key, payload).to_be_bytes());
    record.extend_from_slice(payload);
    record
}

/// The payload of a record stored under `key`.
pub(crate) fn open<'r>(key: &[u8], record: &'r [u8]) -> Result<&'r [u8], Error> {
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
    fn sealed_record_opens_to_its_payload() {
        assert_eq!(open(b"key", &seal(b"key", b"payload")), Ok(&b"payload"[..]));
        assert_eq!(open(b"key", &seal(b"key", b"")), Ok(&b""[..]));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let sealed = seal(b"key", b"payload");
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(b"key", &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn record_under_another_key_is_corrupt() {
        assert_eq!(open(b"kez", &seal(b"key", b"payload")), Err(Error::ChecksumMismatch));
    }

    #[test]
    fn truncated_record_is_corrupt() {
        let sealed = seal(b"key", b"payload");
        for length in 0..sealed.len() {
            assert!(open(b"key", &sealed[..length]).is_err(), "{length} bytes");
        }
    }
}
