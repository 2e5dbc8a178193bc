//! Detects WAL and manifest records that RocksDB would drop silently.
//!
//! RocksDB treats a record that extends beyond the end of its file as an interrupted write and drops everything from it
//! on; it also drops everything after a record of a type that only recycled files have. One flipped bit is enough for
//! either. Every record is verified here before RocksDB opens the directory; nothing is written.
//!
//! Format of `*.log` and `MANIFEST-*`: blocks of 32 KiB; in each, records `[masked crc32c: 4][length: 2][type:
//! 1][payload]`, little endian, the checksum over type and payload; a rest shorter than a header is filled with zeros.

use std::fs;
use std::io;
use std::path::Path;

use super::Corrupt;

const BLOCK_BYTES: usize = 32 * 1024;
const HEADER_BYTES: usize = 7;

/// Verifies the WAL and manifest files in `directory`, which may be missing. An error names the file and the offset.
pub(crate) fn check(directory: &Path) -> io::Result<()> {
    let items = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        items => items?,
    };
    for item in items {
        let item = item?;
        let name = item.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("MANIFEST-") || Path::new(name.as_ref()).extension().is_some_and(|e| e == "log") {
            let bytes = fs::read(item.path())?;
            if let Some(at) = damage(&bytes) {
                return Err(io::Error::other(format!("{name}: corrupt record at offset {at}")));
            }
        }
    }
    Ok(())
}

/// [`check`], with the finding described by `corrupt`.
pub(crate) fn check_for(
    directory: &Path,
    corrupt: impl FnOnce(&Path, io::Error) -> Corrupt,
) -> Result<(), Corrupt> {
    check(directory).map_err(|error| corrupt(directory, error))
}

/// Offset of the first corrupt record.
fn damage(bytes: &[u8]) -> Option<usize> {
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let mut rest = block;
        while let Some((header, payload)) = rest.split_at_checked(HEADER_BYTES) {
            let at = number * BLOCK_BYTES + (block.len() - rest.len());
            let &[a, b, c, d, low, high, kind] = header else { return Some(at) };
            if header.iter().all(|byte| *byte == 0) {
                // Preallocated space.
                if rest.iter().any(|byte| *byte != 0) {
                    return Some(at);
                }
                break;
            }
            let stored = u32::from_le_bytes([a, b, c, d]);
            let length = usize::from(u16::from_le_bytes([low, high]));
            match payload.split_at_checked(length) {
                Some((payload, next)) if masked_checksum(kind, payload) == stored => rest = next,
                Some(_) => return Some(at),
                // No record goes on in the next block. A torn tail, unless the checksum matches a shorter payload, or a whole
                // record follows: then this header is corrupt.
                None => {
                    let is_last = bytes[(number * BLOCK_BYTES + block.len())..].iter().all(|byte| *byte == 0);
                    let is_torn =
                        is_last && !holds_a_record(kind, payload, stored) && !precedes_a_record(payload);
                    return (!is_torn).then_some(at);
                }
            }
        }
    }
    None
}

/// Whether the checksum matches the payload at any length: then the length field is corrupt.
fn holds_a_record(kind: u8, payload: &[u8], stored: u32) -> bool {
    let mut checksum = crc32c::crc32c(&[kind]);
    payload.iter().any(|byte| {
        checksum = crc32c::crc32c_append(checksum, &[*byte]);
        mask(checksum) == stored
    })
}

/// Whether a whole record begins anywhere in these bytes.
fn precedes_a_record(bytes: &[u8]) -> bool {
    bytes.windows(HEADER_BYTES).enumerate().any(|(at, header)| {
        let &[a, b, c, d, low, high, kind] = header else { return false };
        let end = at + HEADER_BYTES + usize::from(u16::from_le_bytes([low, high]));
        let payload = bytes.get(at + HEADER_BYTES..end);
        // Type 0 is unused space.
        kind != 0
            && payload
                .is_some_and(|payload| masked_checksum(kind, payload) == u32::from_le_bytes([a, b, c, d]))
    })
}

fn masked_checksum(kind: u8, payload: &[u8]) -> u32 {
    mask(crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload))
}

/// RocksDB's masking of stored checksums.
fn mask(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).expect("short").to_le_bytes();
        [&masked_checksum(1, payload).to_le_bytes()[..], &length, &[1], payload].concat()
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_detected() {
        let whole = [record(b"first"), record(b"the second"), record(b"last")].concat();
        assert_eq!(damage(&whole), None);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(damage(&flipped).is_some(), "bit {bit}");
        }
    }

    #[test]
    fn overwritten_header_is_detected() {
        let (first, second, last) = (record(b"first"), record(b"the second"), record(b"last"));
        let overwritten = [&first[..], &[0xff; HEADER_BYTES], &second[HEADER_BYTES..], &last].concat();
        assert_eq!(damage(&overwritten), Some(first.len()));
        // At the end of its block, with a record in the next.
        let filler = record(&vec![7; BLOCK_BYTES - 2 * HEADER_BYTES - 10]);
        let crossing = [&filler[..], &[0xff; HEADER_BYTES], &[9; 10], &last].concat();
        assert_eq!(damage(&crossing), Some(filler.len()));
    }

    #[test]
    fn torn_tail_is_no_corruption() {
        let (first, last) = (record(b"first"), record(b"the last one"));
        for length in 0..last.len() {
            assert_eq!(damage(&[&first[..], &last[..length]].concat()), None, "{length} bytes");
        }
    }

    #[test]
    fn preallocated_space_is_no_corruption() {
        assert_eq!(damage(&[record(b"first"), vec![0; 3 * BLOCK_BYTES]].concat()), None);
    }

    #[test]
    fn files_written_by_rocksdb_pass() {
        let data = tempfile::tempdir().expect("directory");
        let database = crate::cluster::log::open_database(data.path()).expect("open");
        let rows = database.cf_handle(crate::cluster::log::LOG).expect("rows");
        for length in [0_usize, 1, 100, 40_000, 100_000, 7] {
            database.put_cf(rows, length.to_be_bytes(), vec![7; length]).expect("put");
        }
        check(data.path()).expect("whole");
    }
}
