//! Finds records that the database library would pass over in silence.
//!
//! RocksDB keeps its write-ahead logs (`*.log`) and its list of files (`MANIFEST-*`) as records with
//! checksums. A record that claims to go on beyond the end of its file is taken for one whose write was
//! cut short, and everything from it on is dropped without a word; so is everything behind a record of a
//! type that only reused files have. One flipped bit is enough for either. Here every record is looked
//! at before the library opens the directory, and nothing is written.
//!
//! Format: blocks of 32 KiB; in each, records `[masked crc32c: 4][length: 2][type: 1][payload]`, little
//! endian, the checksum over type and payload; a rest shorter than a header is filled with zeros.

use std::fs;
use std::io;
use std::path::Path;

use super::Corrupt;

const BLOCK_BYTES: usize = 32 * 1024;
const HEADER_BYTES: usize = 7;

/// Checks the logs and file lists in `directory`; nothing is wrong with one that is not there.
///
/// # Errors
/// What is wrong, with the name of the file and the place in it.
pub fn check(directory: &Path) -> io::Result<()> {
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
                return Err(io::Error::other(format!("{name}: the record at byte {at} is damaged")));
            }
        }
    }
    Ok(())
}

/// As [`check`], for a database whose damage is described by `corrupt`.
///
/// # Errors
/// As `corrupt` says.
pub fn check_for(directory: &Path, corrupt: impl FnOnce(&Path, io::Error) -> Corrupt) -> Result<(), Corrupt> {
    check(directory).map_err(|error| corrupt(directory, error))
}

/// Where the first damaged record begins.
fn damage(bytes: &[u8]) -> Option<usize> {
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let mut rest = block;
        while let Some((header, payload)) = rest.split_at_checked(HEADER_BYTES) {
            let at = number * BLOCK_BYTES + (block.len() - rest.len());
            let &[a, b, c, d, low, high, kind] = header else { return Some(at) };
            if header.iter().all(|byte| *byte == 0) {
                // Space that was reserved and not written yet.
                if rest.iter().any(|byte| *byte != 0) {
                    return Some(at);
                }
                break;
            }
            let stored = u32::from_le_bytes([a, b, c, d]);
            let length = usize::from(u16::from_le_bytes([low, high]));
            match payload.split_at_checked(length) {
                Some((payload, behind)) if masked_checksum(kind, payload) == stored => rest = behind,
                Some(_) => return Some(at),
                // The end of a write that was cut short, unless a whole record lies there.
                None => return holds_a_record(kind, payload, stored).then_some(at),
            }
        }
    }
    None
}

/// Whether the checksum fits the payload up to any length: then it is the length that is wrong.
fn holds_a_record(kind: u8, payload: &[u8], stored: u32) -> bool {
    let mut checksum = crc32c::crc32c(&[kind]);
    payload.iter().any(|byte| {
        checksum = crc32c::crc32c_append(checksum, &[*byte]);
        mask(checksum) == stored
    })
}

fn masked_checksum(kind: u8, payload: &[u8]) -> u32 {
    mask(crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload))
}

/// RocksDB masks checksums that are stored beside what they cover.
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
    fn every_flipped_bit_of_a_record_is_found() {
        let whole = [record(b"first"), record(b"the second"), record(b"last")].concat();
        assert_eq!(damage(&whole), None);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(damage(&flipped).is_some(), "bit {bit}");
        }
    }

    #[test]
    fn a_write_that_was_cut_short_is_no_damage() {
        let (first, last) = (record(b"first"), record(b"the last one"));
        for length in 0..last.len() {
            assert_eq!(damage(&[&first[..], &last[..length]].concat()), None, "{length} bytes");
        }
    }

    #[test]
    fn reserved_space_is_no_damage() {
        assert_eq!(damage(&[record(b"first"), vec![0; 3 * BLOCK_BYTES]].concat()), None);
    }

    #[test]
    fn what_the_library_writes_is_read_as_it_means_it() {
        let data = tempfile::tempdir().expect("directory");
        let database = crate::cluster::log::open_database(data.path()).expect("open");
        let rows = database.cf_handle(crate::cluster::log::LOG).expect("rows");
        for length in [0_usize, 1, 100, 40_000, 100_000, 7] {
            database.put_cf(rows, length.to_be_bytes(), vec![7; length]).expect("put");
        }
        check(data.path()).expect("whole");
    }
}
