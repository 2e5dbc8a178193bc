//! A limit on the processor time of processes, with a control group: version 2 if its controller `cpu` is
//! available, else version 1. Needs root.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

const PERIOD_MICROS: u64 = 100_000;

/// A control group, removed when dropped.
pub struct Cap {
    group: PathBuf,
    parent: PathBuf,
}

impl Cap {
    /// Limits these processes together to so many thousandths of one core.
    pub fn new(name: &str, thousandths: u64, pids: &[u32]) -> Result<Self> {
        let quota = PERIOD_MICROS * thousandths / 1000;
        let name = format!("trust-fabric-bench-{}-{name}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup");
        let has_cpu = fs::read_to_string(unified.join("cgroup.controllers"))
            .is_ok_and(|controllers| controllers.split_whitespace().any(|controller| controller == "cpu"));
        let (parent, limits) = if has_cpu {
            fs::write(unified.join("cgroup.subtree_control"), "+cpu").context("allow the controller cpu")?;
            (unified.to_owned(), vec![("cpu.max", format!("{quota} {PERIOD_MICROS}"))])
        } else {
            let limits = vec![
                ("cpu.cfs_period_us", PERIOD_MICROS.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ];
            (unified.join("cpu"), limits)
        };
        if !parent.is_dir() {
            bail!("{}: no control groups for the processor", parent.display());
        }
        let cap = Self { group: parent.join(name), parent };
        fs::create_dir(&cap.group).with_context(|| format!("{}: root only", cap.group.display()))?;
        for (file, value) in limits {
            fs::write(cap.group.join(file), value).context(file)?;
        }
        for pid in pids {
            fs::write(cap.group.join("cgroup.procs"), pid.to_string()).context("move a process")?;
        }
        Ok(cap)
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        let processes = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines() {
            // The process may have exited.
            drop(fs::write(self.parent.join("cgroup.procs"), pid));
        }
        drop(fs::remove_dir(&self.group));
    }
}
