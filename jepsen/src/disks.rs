//! Disks that lose data that was not synced: each data directory is a file system of its own in an image
//! file. Needs root.
//!
//! The image has what the file system wrote to its device; pages that no sync wrote are in memory only. A
//! power cut replaces the image with a copy of it from that instant.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use trust_fabric_bench::members::command;

/// Maximum tries to copy an image while nothing is written.
const COPIES_MAX: usize = 20;
/// Size of an image, which is a sparse file.
const IMAGE_BYTES: u64 = 2 << 30;

/// The disk of one node, unmounted when it is dropped.
pub struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Creates an image beside `mount`, which is created too, and mounts it there.
    pub fn create(mount: &Path) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("a disk for each node needs root");
        }
        fs::create_dir_all(mount).with_context(|| mount.display().to_string())?;
        let disk = Self { image: mount.with_extension("img"), mount: mount.to_owned() };
        fs::File::create(&disk.image)?.set_len(IMAGE_BYTES)?;
        command(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&disk.image))?;
        disk.mount()?;
        fs::remove_dir(mount.join("lost+found"))?;
        fs::set_permissions(mount, fs::Permissions::from_mode(0o700))?;
        command(Command::new("sync").arg("-f").arg(mount))?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        command(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.mount))
    }

    /// Copies the image as the device has it at one instant, for [`Disk::restore`]: the kernel continues to
    /// write for a stopped process, so the copy is repeated until nothing was written during it.
    pub fn copy(&self) -> Result<()> {
        for _ in 0..COPIES_MAX {
            let before = self.writes()?;
            command(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(self.copied()))?;
            if before == self.writes()? && before.in_flight == 0 {
                return Ok(());
            }
        }
        bail!("{} is written all the time", self.image.display())
    }

    fn writes(&self) -> Result<Writes> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let mount = self.mount.canonicalize()?;
        let device = mounts.lines().find_map(|line| {
            let (device, rest) = line.strip_prefix("/dev/")?.split_once(' ')?;
            (Path::new(rest.split(' ').next()?) == mount).then_some(device)
        });
        let device = device.with_context(|| format!("{} is not mounted", mount.display()))?;
        let stat = fs::read_to_string(format!("/sys/block/{device}/stat"))?;
        let mut fields = stat.split_ascii_whitespace();
        let mut field = |skipped| anyhow::Ok(fields.nth(skipped).context("block statistics")?.parse()?);
        // The fifth and the ninth number.
        Ok(Writes { done: field(4)?, in_flight: field(3)? })
    }

    /// Mounts the copy in place of the image. No process uses the disk.
    pub fn restore(&self) -> Result<()> {
        command(Command::new("umount").arg(&self.mount))?;
        fs::rename(self.copied(), &self.image)?;
        self.mount()
    }

    fn copied(&self) -> PathBuf {
        self.image.with_extension("copy")
    }
}

/// Writes to a device.
#[derive(PartialEq, Eq)]
struct Writes {
    done: u64,
    in_flight: u64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(command(Command::new("umount").arg("-l").arg(&self.mount)));
    }
}

/// Unmounts the disks that a killed harness left below `directory`.
pub fn unmount_below(directory: &Path) -> Result<()> {
    let directory = directory.canonicalize()?;
    for line in fs::read_to_string("/proc/mounts")?.lines() {
        let mount = line.split(' ').nth(1).map(Path::new);
        if let Some(mount) = mount.filter(|mount| mount.starts_with(&directory)) {
            command(Command::new("umount").arg("-l").arg(mount))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Without root, this only checks the error.
    #[test]
    fn power_cut_loses_unsynced_data_only() {
        let directory = tempfile::tempdir().expect("directory");
        let created = Disk::create(&directory.path().join("data"));
        if !rustix::process::geteuid().is_root() {
            assert!(created.is_err_and(|error| error.to_string().contains("needs root")));
            return;
        }
        if !Path::new("/dev/loop-control").exists() {
            println!("not tried: this machine has no loop devices");
            return;
        }
        let disk = created.expect("a disk");
        let write = |name: &str, is_synced: bool| {
            let mut file = fs::File::create(disk.mount.join(name)).expect("file");
            file.write_all(b"content").expect("written");
            if is_synced {
                file.sync_all().expect("synced");
                fs::File::open(&disk.mount).and_then(|directory| directory.sync_all()).expect("synced");
            }
        };
        write("synced", true);
        write("unsynced", false);
        disk.copy().expect("copied");
        disk.restore().expect("restored");
        let has = |name: &str| fs::read(disk.mount.join(name)).is_ok_and(|content| content == b"content");
        assert!(has("synced"));
        assert!(!has("unsynced"));
    }
}
