//! Files of records that are kept until they are somewhere else: written before somebody is answered,
//! read once, removed. Nothing here knows what a record means.
//!
//! A directory (0700) of segments (0600), named by their numbers without gaps. What was appended survives
//! the end of the process, because it is in the system's cache; nothing is synced, so that a power cut may
//! take the last of it.
//!
//! Record: `[length: 4][crc32c of the length: 4][crc32c of the payload: 4][payload]`, big endian. The length
//! has a checksum of its own, so that a flipped bit in it does not look like a record that was cut short.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

const HEADER_BYTES: usize = 12;

/// Adds a record to what is going to be appended.
pub fn frame(buffer: &mut Vec<u8>, record: &[u8]) {
    // Records are far smaller than 4 GiB; a longer one would be read as damage.
    let length = u32::try_from(record.len()).unwrap_or(u32::MAX).to_be_bytes();
    buffer.extend_from_slice(&length);
    buffer.extend_from_slice(&crc32c::crc32c(&length).to_be_bytes());
    buffer.extend_from_slice(&crc32c::crc32c(record).to_be_bytes());
    buffer.extend_from_slice(record);
}

/// What a segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The records that can be read, in order.
    pub records: Vec<Bytes>,
    /// How many bytes of it are something else. A last record that was cut short is not counted: nobody
    /// was answered for it.
    pub damaged_bytes: usize,
    /// The size of the file.
    pub bytes: u64,
}

/// A directory of segments. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Path>);

/// A directory as it was found.
#[derive(Debug)]
pub struct Opened {
    /// The directory.
    pub directory: Directory,
    /// The last segment in it; `done` if there is none.
    pub last: u64,
    /// How many segments were not where the numbers of the others say.
    pub missing: u64,
}

impl Directory {
    /// Opens the directory, which is made if it is not there. Segments up to `done` are somewhere else
    /// already, and are removed; the others are numbered from `done` on.
    ///
    /// # Errors
    /// If the disk refuses, or others may read the directory.
    pub fn open(path: &Path, done: u64) -> io::Result<Opened> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("the directory lets others in; make it 0700"));
        }
        let directory = Self(path.into());
        let (mut last, mut missing) = (done, 0);
        let mut expected = done.saturating_add(1);
        for number in directory.numbers()? {
            if number <= done || directory.read(number)?.is_empty() {
                directory.remove(number)?;
                // Of one that holds nothing, nothing is missing.
                expected = expected.max(number.saturating_add(1));
                continue;
            }
            missing += number.saturating_sub(expected);
            expected = number.saturating_add(1);
            last += 1;
            if number != last {
                // Each number below it is free by now.
                fs::rename(directory.path(number), directory.path(last))?;
            }
        }
        Ok(Opened { directory, last, missing })
    }

    /// The numbers of the segments that are there, in order.
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

    /// What a segment holds.
    ///
    /// # Errors
    /// If it cannot be read at all.
    pub fn read(&self, number: u64) -> io::Result<Contents> {
        Ok(parse(&Bytes::from(fs::read(self.path(number))?)))
    }

    /// Puts a segment that cannot be read out of the way, for somebody to look at, if it is there. Its name
    /// is no number any more.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn set_aside(&self, number: u64) -> io::Result<()> {
        match fs::rename(self.path(number), self.0.join(format!("unreadable-{number}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a segment, if it is there.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn remove(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Contents {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.damaged_bytes == 0
    }
}

/// Appends to the last segment of a directory.
#[derive(Debug)]
pub struct Writer {
    directory: Directory,
    /// The segment that is, or will be, appended to.
    number: u64,
    open: Option<Segment>,
}

#[derive(Debug)]
struct Segment {
    file: File,
    /// Whole records.
    bytes: u64,
    /// Whether there may be more in the file than that.
    is_torn: bool,
}

impl Writer {
    /// Appends to a new segment behind `last`.
    #[must_use]
    pub fn behind(directory: Directory, last: u64) -> Self {
        Self { directory, number: last.saturating_add(1), open: None }
    }

    /// The segment that the next records go to.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How much is in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |segment| segment.bytes)
    }

    /// Appends what [`frame`] made, in one write. It survives the end of the process once this returns.
    ///
    /// # Errors
    /// If the disk refuses. Nothing was appended then.
    pub fn append(&mut self, framed: &[u8]) -> io::Result<()> {
        let segment = if let Some(segment) = &mut self.open {
            segment
        } else {
            let path = self.directory.path(self.number);
            let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
            self.open.insert(Segment { file, bytes: 0, is_torn: false })
        };
        // Else what comes now would stand behind a piece of what was refused.
        segment.mend()?;
        if let Err(error) = segment.file.write_all(framed) {
            segment.is_torn = true;
            // If this fails too, the next one tries again.
            drop(segment.mend());
            return Err(error);
        }
        segment.bytes += framed.len() as u64;
        Ok(())
    }

    /// Ends the segment: it changes no more, and what comes next goes to another. Answers the last one
    /// that has ended.
    ///
    /// # Errors
    /// If there is a piece of a record at its end that the disk does not take away.
    pub fn seal(&mut self) -> io::Result<u64> {
        if let Some(segment) = &mut self.open {
            segment.mend()?;
            if segment.bytes > 0 {
                self.open = None;
                self.number = self.number.saturating_add(1);
            }
        }
        Ok(self.number.saturating_sub(1))
    }
}

impl Segment {
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.bytes)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

enum Read {
    Record(Bytes),
    CutShort,
    Damaged,
}

fn parse(file: &Bytes) -> Contents {
    let mut contents = Contents { records: Vec::new(), damaged_bytes: 0, bytes: file.len() as u64 };
    let mut rest = file.clone();
    // A power cut may leave zeros where a file had grown already.
    let zeros = file.iter().rev().take_while(|byte| **byte == 0).count();
    while !rest.is_empty() {
        match record(&rest) {
            Read::Record(record) => {
                rest = rest.slice(HEADER_BYTES + record.len()..);
                contents.records.push(record);
            }
            Read::CutShort => break,
            Read::Damaged if rest.len() <= zeros => break,
            // What follows a damaged record begins where one can be read again.
            Read::Damaged => {
                rest = rest.slice(1..);
                contents.damaged_bytes += 1;
            }
        }
    }
    contents
}

fn record(bytes: &Bytes) -> Read {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Read::CutShort };
    let (length, sums) = header.split_at(4);
    let (length_sum, payload_sum) = sums.split_at(4);
    if crc32c::crc32c(length).to_be_bytes() != length_sum {
        return Read::Damaged;
    }
    let bytes_stated = length.iter().fold(0, |value, byte| value << 8 | usize::from(*byte));
    match rest.get(..bytes_stated) {
        None => Read::CutShort,
        Some(payload) if crc32c::crc32c(payload).to_be_bytes() == payload_sum => {
            Read::Record(bytes.slice_ref(payload))
        }
        Some(_) => Read::Damaged,
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
    fn records_are_read_in_the_order_in_which_they_were_appended() {
        let (_outer, path) = directory();
        let (directory, last) = open(&path, 0);
        let mut writer = Writer::behind(directory.clone(), last);
        assert_eq!(writer.seal().expect("seal"), 0, "there is nothing to end");
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
    fn a_record_cut_short_at_any_byte_hides_nothing_before_it_and_is_no_damage() {
        let whole = framed(&["first", "second", "third"]);
        let before_last = framed(&["first", "second"]).len();
        for end in before_last..whole.len() {
            let contents = parsed(&whole[..end]);
            assert_eq!((texts(&contents).len(), contents.damaged_bytes), (2, 0), "cut at {end}");
            let zeros = [&whole[..before_last], &vec![0; end - before_last][..]].concat();
            assert_eq!(
                (texts(&parsed(&zeros)).len(), parsed(&zeros).damaged_bytes),
                (2, 0),
                "zeros to {end}"
            );
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_costs_its_own_record_only_and_is_noticed() {
        let records = ["first", "second", "third"];
        let whole = framed(&records);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                let contents = parsed(&flipped);
                assert!(contents.damaged_bytes > 0, "byte {at} bit {bit} went unnoticed");
                let read = texts(&contents);
                assert_eq!(read.len(), 2, "byte {at} bit {bit}: {read:?}");
                assert!(read.iter().all(|record| records.contains(&record.as_str())), "{read:?}");
            }
        }
    }

    #[test]
    fn many_zeros_before_something_else_are_read_once() {
        // Looked through again from each byte on, these would take hours.
        let bytes = [&vec![0; 4 * 1024 * 1024][..], &framed(&["last"])].concat();
        let contents = parsed(&bytes);
        assert_eq!((texts(&contents), contents.damaged_bytes), (vec!["last".into()], 4 * 1024 * 1024));
    }

    #[test]
    fn a_segment_set_aside_is_kept_and_counts_no_more() {
        let (_outer, path) = directory();
        let (directory, last) = open(&path, 0);
        let mut writer = Writer::behind(directory.clone(), last);
        writer.append(&framed(&["a"])).expect("append");
        for _ in 0..2 {
            directory.set_aside(1).expect("set aside");
            assert!(directory.numbers().expect("numbers").is_empty() && path.join("unreadable-1").exists());
        }
    }

    #[test]
    fn what_is_done_or_empty_is_removed_and_the_rest_is_numbered_without_gaps() {
        let (_outer, path) = directory();
        fs::DirBuilder::new().mode(0o700).create(&path).expect("directory");
        for (number, text) in [(1, "old"), (2, "old"), (3, ""), (4, "a"), (10, "b")] {
            let bytes = if text.is_empty() { vec![0; 7] } else { framed(&[text]) };
            fs::write(path.join(number.to_string()), bytes).expect("segment");
        }
        fs::write(path.join("other"), "kept").expect("file");
        let Opened { directory, last, missing } = Directory::open(&path, 2).expect("opens");
        assert_eq!((last, missing), (4, 5), "5 to 9 are gone");
        assert_eq!(directory.numbers().expect("numbers"), [3, 4]);
        assert_eq!(texts(&directory.read(3).expect("read")), ["a"]);
        assert_eq!(texts(&directory.read(4).expect("read")), ["b"]);
        assert!(path.join("other").exists());
    }

    #[test]
    fn a_directory_that_lets_others_in_is_refused() {
        let (_outer, path) = directory();
        fs::DirBuilder::new().mode(0o700).create(&path).expect("directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("mode");
        assert!(Directory::open(&path, 0).expect_err("refused").to_string().contains("0700"));
    }

    #[test]
    fn a_piece_of_a_refused_write_is_taken_away_before_the_next() {
        use nix::sys::signal::{SigSet, Signal};
        let (_outer, path) = directory();
        let (directory, last) = open(&path, 0);
        let mut writer = Writer::behind(directory.clone(), last);
        let first = framed(&["first"]);
        writer.append(&first).expect("append");
        // The system writes up to the limit and refuses the rest, as on a full disk. It would also end
        // the process, were the signal not held back.
        SigSet::from(Signal::SIGXFSZ).thread_block().expect("signal");
        let before = getrlimit(Resource::Fsize);
        let most = Rlimit { current: Some(first.len() as u64 + 15), maximum: before.maximum };
        setrlimit(Resource::Fsize, most).expect("limit");
        let refused = writer.append(&framed(&["second", "third"]));
        let after_first = fs::metadata(path.join("1")).expect("segment").len();
        let refused_again = writer.append(&framed(&["second"]));
        setrlimit(Resource::Fsize, before).expect("limit");
        assert!(refused.is_err() && refused_again.is_err());
        assert_eq!(after_first, first.len() as u64, "a piece was left");
        writer.append(&framed(&["fourth"])).expect("append");
        writer.seal().expect("seal");
        let contents = directory.read(1).expect("read");
        assert_eq!((texts(&contents), contents.damaged_bytes), (vec!["first".into(), "fourth".into()], 0));
    }
}
