//! Environment and executable of the process; read nowhere else.

use std::io;
use std::path::PathBuf;

/// Environment variables in UTF-8; no setting's name needs more.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The user's data directory: `$XDG_DATA_HOME`, else `~/.local/share` (XDG Base Directory).
#[must_use]
pub fn data_home(environment: &mut dyn Iterator<Item = (String, String)>) -> Option<PathBuf> {
    let (mut data, mut user) = (None, None);
    for (name, value) in environment {
        match name.as_str() {
            "XDG_DATA_HOME" => data = Some(PathBuf::from(value)),
            "HOME" => user = Some(PathBuf::from(value)),
            _ => {}
        }
    }
    // "All paths set in these environment variables must be absolute"; others are ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    data.filter(absolute).or_else(|| Some(user.filter(absolute)?.join(".local").join("share")))
}

/// Path of this executable, which is started again to compile policies.
///
/// # Errors
/// If the operating system does not provide it.
pub fn program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Disables core dumps of this process: its memory has private keys.
pub fn forbid_core_dumps() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    // Lowering a limit is always allowed.
    rustix::process::setrlimit(rustix::process::Resource::Core, none).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(variables: &[(&str, &str)]) -> Option<PathBuf> {
        data_home(&mut variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn data_home_is_xdg_data_home_or_below_home() {
        assert_eq!(home(&[("HOME", "/u"), ("XDG_DATA_HOME", "/d")]), Some("/d".into()));
        assert_eq!(home(&[("HOME", "/u"), ("XDG_DATA_HOME", "relative")]), Some("/u/.local/share".into()));
        assert_eq!(home(&[("HOME", "")]), None);
        assert_eq!(home(&[]), None);
    }
}
