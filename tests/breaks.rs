//! Deliberate breaks: the page that lists them, and that no program that is shipped has them.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_trust-fabric");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// The files of these places.
fn files(places: &[&str]) -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> = places.iter().map(|place| root().join(place)).collect();
    let mut files = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("entry").path()));
        } else {
            files.push(path);
        }
    }
    files
}

#[test]
fn page_has_a_row_for_every_deliberate_break() {
    let code = read("src/breaks.rs");
    let in_code: BTreeSet<&str> = code
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.split_once(" = \"")?.1.strip_suffix("\";"))
        .filter(|name| name.chars().all(|char| char.is_ascii_lowercase() || char == '-'))
        .collect();
    let page = read("docs/proofs/breaks.md");
    let on_page = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let on_page: BTreeSet<&str> = on_page.map(|(name, _)| name).collect();
    assert!(in_code.len() >= 20, "{in_code:?}");
    assert_eq!(on_page, in_code);
}

/// The script, and the harness outside the product, are the only builds with the feature.
#[test]
fn no_build_that_is_shipped_has_deliberate_breaks() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    let features = manifest["features"].as_table().expect("features");
    let names = |feature: &str| {
        let named = features.get(feature).and_then(toml::Value::as_array);
        named.is_some_and(|named| named.iter().any(|name| name.as_str() == Some("breaks")))
    };
    assert_eq!(features["breaks"], toml::Value::Array(Vec::new()));
    for feature in features.keys() {
        assert!(!names(feature), "{feature} has the feature `breaks`");
    }
    let shipping = ["Dockerfile", "scripts", "charts", "packaging", ".ci", "docker-compose.yml"];
    for path in files(&shipping) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let has_it = text.contains("features") && text.contains("trust-fabric/breaks");
        assert!(!has_it || name == "breaks.py", "{}", path.display());
        assert!(!text.contains("--all-features"), "{}", path.display());
    }
}

/// Scripts that make packages and images refuse a program by the name of the variable, which a build without the feature
/// does not contain.
#[test]
fn program_with_deliberate_breaks_is_not_packed() {
    let directory = tempfile::tempdir().expect("directory");
    let built = directory.path().join("shipped");
    fs::create_dir(&built).expect("directory");
    let program = built.join("trust-fabric");
    fs::write(&program, b"\x7fELF\0TRUST_FABRIC_BREAK\0").expect("program");
    let image = directory.path().join("image");
    for command in [
        Command::new(root().join("scripts/dist.sh")).env("CARGO_TARGET_DIR", directory.path()),
        Command::new(root().join("scripts/image-tree.sh")).args([&program, &image]),
    ] {
        let ended = command.output().expect("runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("for tests only"), "{said}");
    }
    assert!(!image.exists() && !directory.path().join("dist").exists());
    let checked = Command::new(root().join("scripts/no_breaks.sh")).arg(PROGRAM).status().expect("runs");
    assert_eq!(checked.success(), cfg!(not(feature = "breaks")));
}

#[cfg(feature = "breaks")]
#[test]
fn program_with_breaks_starts_only_with_a_named_one() {
    let run = |chosen: Option<&str>| {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--config", "missing.toml"]).env_remove("TRUST_FABRIC_BREAK");
        let ended = command.envs(chosen.map(|name| ("TRUST_FABRIC_BREAK", name))).output().expect("runs");
        (ended.status.code(), String::from_utf8(ended.stderr).expect("text"))
    };
    for (chosen, said) in [(None, "for tests only: set TRUST_FABRIC_BREAK"), (Some("all"), "no break `all`")]
    {
        let (status, printed) = run(chosen);
        assert_eq!(status, Some(2), "{printed}");
        assert!(printed.contains(said), "{printed}");
    }
    for chosen in ["none", "no-deduplication"] {
        let (status, printed) = run(Some(chosen));
        assert_eq!(status, Some(1), "there is no configuration: {printed}");
        assert!(printed.contains("BREAKS ITS PROMISES ON PURPOSE"), "{printed}");
        assert!(printed.contains(&format!("TRUST_FABRIC_BREAK={chosen}")), "{printed}");
    }
}
