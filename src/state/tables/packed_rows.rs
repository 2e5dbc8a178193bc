//! Packed rows: adjacent rows of a table in few bytes that can be read fast.
//!
//! Format: `[crc32c of the rest: 4, big endian][length of the rows: 4, big endian][rows]`; each row is
//! `[length of the key][length of the row][key][row]`, in key order. Packed rows exist in memory only, so the format
//! may change.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use zstd::bulk::{Compressor, Decompressor};

use crate::cluster::Corrupt;

/// zstd finds near-duplicate rows at any level; this one decompresses fastest.
const COMPRESSION_LEVEL: i32 = -1;
const HEADER_BYTES: usize = 8;

thread_local! {
    /// One per thread, so that a read neither creates one nor waits for another thread.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Packing of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Uncompressed, for rows that have nothing in common.
    Plain,
    /// Compressed together with zstd.
    Compressed,
}

impl Packing {
    /// Bytes of rows beyond which packed rows are split: more take longer to read, fewer compress less.
    #[must_use]
    pub const fn full(self) -> usize {
        match self {
            Self::Plain => 2 * 1024,
            Self::Compressed => 6 * 1024,
        }
    }
}

/// Immutable packed rows: reads do not block writes.
#[derive(Clone)]
pub struct PackedRows(Arc<[u8]>);

impl PackedRows {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The rows, for [`rows`].
    pub fn unpack(&self, packing: Packing) -> Result<Cow<'_, [u8]>, Corrupt> {
        let corrupt = || Corrupt::row("rows in memory are corrupt");
        let (checksum, rest) = self.0.split_first_chunk().ok_or_else(corrupt)?;
        if u32::from_be_bytes(*checksum) != crc32c::crc32c(rest) {
            return Err(corrupt());
        }
        let (length, packed) = rest.split_first_chunk().ok_or_else(corrupt)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| corrupt())?;
        let rows = match packing {
            Packing::Plain => Cow::Borrowed(packed),
            Packing::Compressed => Cow::Owned(decompressed(packed, length).map_err(|_| corrupt())?),
        };
        if rows.len() == length { Ok(rows) } else { Err(corrupt()) }
    }
}

fn decompressed(packed: &[u8], length: usize) -> io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = match decompressor {
            Some(decompressor) => decompressor,
            None => decompressor.insert(Decompressor::new()?),
        };
        decompressor.decompress(packed, length)
    })
}

/// Packs rows.
#[derive(Default)]
pub struct Packer {
    compressor: Option<Compressor<'static>>,
    scratch: Vec<u8>,
}

impl Packer {
    /// Packs `rows`, which [`frame`] has written.
    pub fn pack(&mut self, packing: Packing, rows: &[u8]) -> Result<PackedRows, Corrupt> {
        let unpacked = |error: &dyn std::fmt::Display| {
            Corrupt::row(format_args!("pack {} bytes of rows in memory: {error}", rows.len()))
        };
        let length = u32::try_from(rows.len()).map_err(|error| unpacked(&error))?;
        let compressed = match packing {
            Packing::Plain => rows,
            Packing::Compressed => {
                let compressor = match &mut self.compressor {
                    Some(compressor) => compressor,
                    none => {
                        none.insert(Compressor::new(COMPRESSION_LEVEL).map_err(|error| unpacked(&error))?)
                    }
                };
                self.scratch.clear();
                self.scratch.reserve(zstd::zstd_safe::compress_bound(rows.len()));
                compressor.compress_to_buffer(rows, &mut self.scratch).map_err(|error| unpacked(&error))?;
                &self.scratch
            }
        };
        let mut packed = Vec::with_capacity(HEADER_BYTES + compressed.len());
        packed.extend_from_slice(&[0; 4]);
        packed.extend_from_slice(&length.to_be_bytes());
        packed.extend_from_slice(compressed);
        let checksum = crc32c::crc32c(&packed[4..]);
        packed[..4].copy_from_slice(&checksum.to_be_bytes());
        Ok(PackedRows(packed.into()))
    }
}

/// Appends a row to `rows`.
pub fn frame(rows: &mut Vec<u8>, key: &[u8], row: &[u8]) {
    for length in [key.len(), row.len()] {
        let mut bytes = [0; 10];
        let mut left = &mut bytes[..];
        // Ten bytes suffice for any length.
        let _ = prost::encode_length_delimiter(length, &mut left);
        let unused = left.len();
        rows.extend_from_slice(&bytes[..bytes.len() - unused]);
    }
    rows.extend_from_slice(key);
    rows.extend_from_slice(row);
}

/// The rows with their keys, in key order.
#[must_use]
pub fn rows(unpacked: &[u8]) -> Rows<'_> {
    Rows(unpacked)
}

/// Iterator of [`rows`].
pub struct Rows<'r>(&'r [u8]);

impl Rows<'_> {
    /// Bytes of the remaining rows.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.len()
    }
}

impl<'r> Iterator for Rows<'r> {
    type Item = Result<(&'r [u8], &'r [u8]), Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let row = split_row(self.0);
        self.0 = row.map_or(&[], |(_, _, rest)| rest);
        Some(row.map(|(key, row, _)| (key, row)).ok_or_else(|| Corrupt::row("rows in memory are corrupt")))
    }
}

fn split_row(mut framed: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let key_length = prost::decode_length_delimiter(&mut framed).ok()?;
    let row_length = prost::decode_length_delimiter(&mut framed).ok()?;
    let (key, rest) = framed.split_at_checked(key_length)?;
    let (row, rest) = rest.split_at_checked(row_length)?;
    Some((key, row, rest))
}

/// Splits `rows` into parts of at most five eighths of `full` if they exceed `full`, so that later rows fit into any
/// part. A larger row is a part by itself.
pub fn parts(framed: &[u8], full: usize) -> Result<Vec<&[u8]>, Corrupt> {
    if framed.len() <= full {
        return Ok(if framed.is_empty() { Vec::new() } else { vec![framed] });
    }
    let (mut parts, mut begin, mut end) = (Vec::new(), 0, 0);
    let mut rows = rows(framed);
    while let Some(row) = rows.next() {
        row?;
        let behind = framed.len() - rows.left();
        if end > begin && behind - begin > full / 8 * 5 {
            parts.push(&framed[begin..end]);
            begin = end;
        }
        end = behind;
    }
    parts.push(&framed[begin..end]);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    const PACKINGS: [Packing; 2] = [Packing::Plain, Packing::Compressed];

    impl PackedRows {
        /// Packed rows with a valid checksum and arbitrary content.
        fn sealed(length: u32, packed: &[u8]) -> Self {
            let rest = [&length.to_be_bytes()[..], packed].concat();
            Self([&crc32c::crc32c(&rest).to_be_bytes()[..], &rest].concat().into())
        }

        /// A copy with one flipped bit.
        pub fn corrupt(&self, bit: usize) -> Self {
            let mut bytes = self.0.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            Self(bytes.into())
        }
    }

    fn framed<'r>(rows: impl IntoIterator<Item = (&'r Vec<u8>, &'r Vec<u8>)>) -> Vec<u8> {
        let mut framed = Vec::new();
        rows.into_iter().for_each(|(key, row)| frame(&mut framed, key, row));
        framed
    }

    proptest! {
        #[test]
        fn packed_rows_unpack_unchanged(
            table in btree_map(vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..600), 0..20),
        ) {
            let bytes = framed(&table);
            for packing in PACKINGS {
                let packed = Packer::default().pack(packing, &bytes).expect("packs");
                let unpacked = packed.unpack(packing).expect("unpacks");
                let read: Result<Vec<_>, _> = rows(&unpacked).collect();
                let read: Vec<_> = read.expect("rows");
                prop_assert!(read.iter().copied().eq(table.iter().map(|(key, row)| (&key[..], &row[..]))));
            }
        }

        #[test]
        fn parts_have_all_rows_and_are_small_or_one_row(
            table in btree_map(vec(any::<u8>(), 1..9), (0usize..900).prop_map(|length| vec![7; length]), 1..60),
        ) {
            let (full, bytes) = (800, framed(&table));
            let parts = parts(&bytes, full).expect("parts");
            prop_assert_eq!(parts.concat(), bytes.clone());
            prop_assert_eq!(parts.len() == 1, bytes.len() <= full || table.len() == 1);
            for part in &parts {
                let is_small = part.len() <= if parts.len() == 1 { full } else { full / 8 * 5 };
                prop_assert!(is_small || rows(part).count() == 1, "{}", part.len());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in vec(any::<u8>(), 0..60),
            length in any::<u32>(),
        ) {
            for row in rows(&bytes) {
                let _ = row.map_err(|error| error.to_string());
            }
            let _ = parts(&bytes, 8);
            for packing in PACKINGS {
                // A small length, because it is allocated.
                let _ = PackedRows::sealed(length % 4096, &bytes).unpack(packing).map(|rows| rows.len());
            }
        }
    }

    #[test]
    fn flipped_bit_or_truncation_is_corrupt() {
        let bytes =
            framed([(&b"key".to_vec(), &b"a row".repeat(9)), (&b"key two".to_vec(), &b"a row".repeat(8))]);
        for packing in PACKINGS {
            let packed = Packer::default().pack(packing, &bytes).expect("packs");
            assert!(packed.unpack(packing).is_ok());
            for bit in 0..packed.bytes() * 8 {
                assert!(packed.corrupt(bit).unpack(packing).is_err(), "{packing:?}, bit {bit}");
            }
            for length in 0..packed.bytes() {
                assert!(
                    PackedRows(packed.0[..length].into()).unpack(packing).is_err(),
                    "{packing:?}, {length} bytes"
                );
            }
        }
    }

    #[test]
    fn wrong_length_is_corrupt() {
        let bytes = framed([(&b"key".to_vec(), &b"a row".repeat(9))]);
        let mut packed = Vec::with_capacity(1024);
        Compressor::new(1).expect("made").compress_to_buffer(&bytes, &mut packed).expect("compresses");
        for (packing, packed) in [(Packing::Plain, &bytes), (Packing::Compressed, &packed)] {
            let length = u32::try_from(bytes.len()).expect("short");
            assert!(PackedRows::sealed(length, packed).unpack(packing).is_ok());
            for wrong in [0, length - 1, length + 1, length + 1000] {
                assert!(PackedRows::sealed(wrong, packed).unpack(packing).is_err(), "{packing:?}, {wrong}");
            }
        }
    }

    #[test]
    fn similar_rows_compress_to_a_fifth() {
        let table: Vec<(Vec<u8>, Vec<u8>)> = (0..14u64)
            .map(|number| {
                let id = format!("tool-{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let text =
                    format!("{id}, reports of shard {number}: ") + &"answers a question in SQL. ".repeat(14);
                (id.into_bytes(), text.into_bytes())
            })
            .collect();
        let bytes = framed(table.iter().map(|(key, row)| (key, row)));
        let packed = Packer::default().pack(Packing::Compressed, &bytes).expect("packs");
        assert!(packed.bytes() * 5 < bytes.len(), "{} of {}", packed.bytes(), bytes.len());
    }
}
