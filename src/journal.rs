//! Files of records that are written before a request is answered, read once and removed after shipping. The meaning
//! of a record is not known here.
//!
//! A directory (0700) of segments (0600), named by consecutive numbers. An appended record survives the end of the
//! process, because it is in the page cache; nothing is synced, so a power failure may lose the last records.
//!
//! Record: `[length: 4][crc32c of the length: 4][crc32c of the payload: 4][payload]`, big endian. The length has a
//! checksum of its own, so that a flipped bit in it does not look like a torn tail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

const HEADER_BYTES: usize = 12;

/// Adds a framed record to `buffer`.
pub fn frame(buffer: &mut Vec<u8>, record: &[u8]) {
    // Records are far smaller than 4 GiB; a longer one would be read as corruption.
    let length = u32::try_from(record.len()).unwrap_or(u32::MAX).to_be_bytes();
    buffer.extend_from_slice(&length);
    buffer.extend_from_slice(&crc32c::crc32c(&length).to_be_bytes());
    buffer.extend_from_slice(&crc32c::crc32c(record).to_be_bytes());
    buffer.extend_from_slice(record);
}

/// Contents of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The records that can be read, in order.
    pub records: Vec<Bytes>,
    /// Number of bytes that belong to no valid record. A torn tail is not counted: its request was not answered.
    pub corrupt_bytes: usize,
    /// The size of the file.
    pub bytes: u64,
}

/// A directory of segments. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Path>);

/// Result of [`Directory::open`].
#[derive(Debug)]
pub struct Opened {
    /// The directory.
    pub directory: Directory,
    /// The last segment in it; `done` if there is none.
    pub last: u64,
    /// Number of segments missing between the others.
    pub missing: u64,
}

impl Directory {
    /// Opens the directory, which is created if it is missing. Segments up to `done` are shipped already and are
    /// removed; the others are renumbered from `done` on.
    ///
    /// # Errors
    /// The disk fails, or other users may read the directory.
    pub fn open(path: &Path, done: u64) -> io::Result<Opened> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("the directory gives other users access; set it to 0700"));
        }
        let directory = Self(path.into());
        let (mut last, mut missing) = (done, 0);
        let mut expected = done.saturating_add(1);
        for number in directory.numbers()? {
            // One that cannot be read may have records.
            if number <= done || directory.read(number).is_ok_and(|contents| contents.is_empty()) {
                directory.remove(number)?;
                // An empty segment is not missing.
                expected = expected.max(number.saturating_add(1));
                continue;
            }
            missing += number.saturating_sub(expected);
            expected = number.saturating_add(1);
            last += 1;
            if number != last {
                // Every lower number is free by now.
                fs::rename(directory.path(number), directory.path(last))?;
            }
        }
        Ok(Opened { directory, last, missing })
    }

    /// Numbers of the existing segments, in order.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for item in fs::read_dir(&self.0)? {
            let name = item?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.0.join(number.to_string())
    }

    pub fn read(&self, number: u64) -> io::Result<Contents> {
        Ok(parse(&Bytes::from(fs::read(self.path(number))?)))
    }

    /// Renames a segment that cannot be read to `unreadable-<number>`, for the operator to examine. No error if it does
    /// not exist.
    pub fn set_aside(&self, number: u64) -> io::Result<()> {
        match fs::rename(self.path(number), self.0.join(format!("unreadable-{number}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a segment. No error if it does not exist.
    pub fn remove(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Contents {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.corrupt_bytes == 0
    }
}

/// Appends to the last segment of a directory.
#[derive(Debug)]
pub struct Writer {
    directory: Directory,
    /// Number of the current segment; its file is created by the first append.
    number: u64,
    open: Option<Segment>,
}

#[derive(Debug)]
struct Segment {
    file: File,
    /// Size of the whole records.
    bytes: u64,
    /// Whether the file may end with a part of a record.
    is_torn: bool,
}

impl Writer {
    /// Appends to a new segment after `last`.
    #[must_use]
    pub fn after(directory: Directory, last: u64) -> Self {
        Self { directory, number: last.saturating_add(1), open: None }
    }

    /// Number of the segment that the next append goes to.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Size of the current segment.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |segment| segment.bytes)
    }

    /// Appends the output of [`frame`] in one write. It survives the end of the process once this returns. On error,
    /// no record was appended.
    pub fn append(&mut self, framed: &[u8]) -> io::Result<()> {
        let segment = if let Some(segment) = &mut self.open {
            segment
        } else {
            let path = self.directory.path(self.number);
            let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
            self.open.insert(Segment { file, bytes: 0, is_torn: false })
        };
        // Without this, the records would follow a part of a failed append.
        segment.truncate_torn_tail()?;
        if let Err(error) = segment.file.write_all(framed) {
            segment.is_torn = true;
            // If this fails too, the next append tries again.
            drop(segment.truncate_torn_tail());
            return Err(error);
        }
        segment.bytes += framed.len() as u64;
        Ok(())
    }

    /// Closes the current segment, so that the next append starts another. Returns the number of the last closed one.
    ///
    /// # Errors
    /// The segment ends with a part of a record, and truncating that failed.
    pub fn seal(&mut self) -> io::Result<u64> {
        if let Some(segment) = &mut self.open {
            segment.truncate_torn_tail()?;
            if segment.bytes > 0 {
                self.open = None;
                self.number = self.number.saturating_add(1);
            }
        }
        Ok(self.number.saturating_sub(1))
    }
}

impl Segment {
    fn truncate_torn_tail(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.bytes)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

enum Read {
    Record(Bytes),
    TornTail,
    Corrupt,
}

fn parse(file: &Bytes) -> Contents {
    let mut contents = Contents { records: Vec::new(), corrupt_bytes: 0, bytes: file.len() as u64 };
    let mut rest = file.clone();
    // A power failure may leave zeros where the file had grown already.
    let zeros = file.iter().rev().take_while(|byte| **byte == 0).count();
    while !rest.is_empty() {
        match record(&rest) {
            Read::Record(record) => {
                rest = rest.slice(HEADER_BYTES + record.len()..);
                contents.records.push(record);
            }
            Read::TornTail => break,
            Read::Corrupt if rest.len() <= zeros => break,
            // Reading resumes after a corrupt record at the next byte where a valid record begins.
            Read::Corrupt => {
                rest = rest.slice(1..);
                contents.corrupt_bytes += 1;
            }
        }
    }
    contents
}

fn record(bytes: &Bytes) -> Read {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Read::TornTail };
    let (length, sums) = header.split_at(4);
    let (length_sum, payload_sum) = sums.split_at(4);
    if crc32c::crc32c(length).to_be_bytes() != length_sum {
        return Read::Corrupt;
    }
    let bytes_stated = length.iter().fold(0, |value, byte| value << 8 | usize::from(*byte));
    match rest.get(..bytes_stated) {
        None => Read::TornTail,
        Some(payload) if crc32c::crc32c(payload).to_be_bytes() == payload_sum => {
            Read::Record(bytes.slice_ref(payload))
        }
        Some(_) => Read::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use tempfile::TempDir;

    use super::*;

    fn directory() -> (TempDir, PathBuf) {
        let outer = tempfile::tempdir().expect("directory");
        let path = outer.path().join("journal");
        (outer, path)
    }

    fn open(path: &Path, done: u64) -> (Directory, u64) {
        let Opened { directory, last, missing } = Directory::open(path, done).expect("opens");
        assert_eq!(missing, 0);
        (directory, last)
    }

    fn framed(records: &[&str]) -> Vec<u8> {
        let mut buffer = Vec::new();
        for record in records {
            frame(&mut buffer, record.as_bytes());
        }
        buffer
    }

    fn texts(contents: &Contents) -> Vec<String> {
        contents.records.iter().map(|record| String::from_utf8_lossy(record).into_owned()).collect()
    }

    fn parsed(bytes: &[u8]) -> Contents {
        parse(&Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn records_are_read_in_the_order_of_their_appends() {
        let (_outer, path) = directory();
        let (directory, last) = open(&path, 0);
        let mut writer = Writer::after(directory.clone(), last);
        assert_eq!(writer.seal().expect("seal"), 0, "nothing to close");
        writer.append(&framed(&["a", "", "bc"])).expect("append");
        writer.append(&framed(&["d"])).expect("append");
        assert_eq!((writer.seal().expect("seal"), writer.number(), writer.bytes()), (1, 2, 0));
        writer.append(&framed(&["e"])).expect("append");
        assert_eq!(texts(&directory.read(1).expect("read")), ["a", "", "bc", "d"]);
        assert_eq!(texts(&directory.read(2).expect("read")), ["e"]);
        let mode = |path: &Path| fs::metadata(path).expect("mode").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("1"))), (0o700, 0o600));
    }

    #[test]
    fn torn_tail_is_no_corruption() {
        let whole = framed(&["first", "second", "third"]);
        let before_last = framed(&["first", "second"]).len();
        for end in before_last..whole.len() {
            let contents = parsed(&whole[..end]);
            assert_eq!((texts(&contents).len(), contents.corrupt_bytes), (2, 0), "cut at {end}");
            let zeros = [&whole[..before_last], &vec![0; end - before_last][..]].concat();
            assert_eq!(
                (texts(&parsed(&zeros)).len(), parsed(&zeros).corrupt_bytes),
                (2, 0),
                "zeros to {end}"
            );
        }
    }

    #[test]
    fn flipped_bit_loses_its_own_record_only() {
        let records = ["first", "second", "third"];
        let whole = framed(&records);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                let contents = parsed(&flipped);
                assert!(contents.corrupt_bytes > 0, "byte {at} bit {bit} went unnoticed");
                let read = texts(&contents);
                assert_eq!(read.len(), 2, "byte {at} bit {bit}: {read:?}");
                assert!(read.iter().all(|record| records.contains(&record.as_str())), "{read:?}");
            }
        }
    }

    #[test]
    fn zeros_before_a_record_are_read_in_linear_time() {
        // Counting the zeros anew from each byte would take hours.
        let bytes = [&vec![0; 4 * 1024 * 1024][..], &framed(&["last"])].concat();
        let contents = parsed(&bytes);
        assert_eq!((texts(&contents), contents.corrupt_bytes), (vec!["last".into()], 4 * 1024 * 1024));
    }

    #[test]
    fn unreadable_segment_is_renamed_and_retained() {
        let (_outer, path) = directory();
        let (directory, last) = open(&path, 0);
        let mut writer = Writer::after(directory.clone(), last);
        writer.append(&framed(&["a"])).expect("append");
        for _ in 0..2 {
            directory.set_aside(1).expect("set aside");
            assert!(directory.numbers().expect("numbers").is_empty() && path.join("unreadable-1").exists());
        }
    }

    #[test]
    fn done_and_empty_segments_are_removed_others_renumbered() {
        let (_outer, path) = directory();
        fs::DirBuilder::new().mode(0o700).create(&path).expect("directory");
        for (number, text) in [(1, "old"), (2, "old"), (3, ""), (4, "a"), (10, "b")] {
            let bytes = if text.is_empty() { vec![0; 7] } else { framed(&[text]) };
            fs::write(path.join(number.to_string()), bytes).expect("segment");
        }
        fs::write(path.join("other"), "kept").expect("file");
        let Opened { directory, last, missing } = Directory::open(&path, 2).expect("opens");
        assert_eq!((last, missing), (4, 5), "5 to 9 are missing");
        assert_eq!(directory.numbers().expect("numbers"), [3, 4]);
        assert_eq!(texts(&directory.read(3).expect("read")), ["a"]);
        assert_eq!(texts(&directory.read(4).expect("read")), ["b"]);
        assert!(path.join("other").exists());
    }

    #[test]
    fn directory_with_access_for_others_is_refused() {
        let (_outer, path) = directory();
        fs::DirBuilder::new().mode(0o700).create(&path).expect("directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("mode");
        assert!(Directory::open(&path, 0).expect_err("refused").to_string().contains("0700"));
    }

    #[test]
    fn failed_append_is_truncated_before_the_next() {
        use nix::sys::signal::{SigSet, Signal};
        let (_outer, path) = directory();
        let (directory, last) = open(&path, 0);
        let mut writer = Writer::after(directory.clone(), last);
        let first = framed(&["first"]);
        writer.append(&first).expect("append");
        // The system writes up to the limit and refuses the rest, as on a full disk. SIGXFSZ would end the process if
        // it were not blocked.
        SigSet::from(Signal::SIGXFSZ).thread_block().expect("signal");
        let before = getrlimit(Resource::Fsize);
        let most = Rlimit { current: Some(first.len() as u64 + 15), maximum: before.maximum };
        setrlimit(Resource::Fsize, most).expect("limit");
        let refused = writer.append(&framed(&["second", "third"]));
        let after_first = fs::metadata(path.join("1")).expect("segment").len();
        let refused_again = writer.append(&framed(&["second"]));
        setrlimit(Resource::Fsize, before).expect("limit");
        assert!(refused.is_err() && refused_again.is_err());
        assert_eq!(after_first, first.len() as u64, "truncated");
        writer.append(&framed(&["fourth"])).expect("append");
        writer.seal().expect("seal");
        let contents = directory.read(1).expect("read");
        assert_eq!((texts(&contents), contents.corrupt_bytes), (vec!["first".into(), "fourth".into()], 0));
    }
}
