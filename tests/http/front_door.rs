//! The guide's sections on TLS and streams: every command is run in order in an empty directory. Also the checks of
//! `make` before a build.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::{Node, ports};

const PROGRAM: &str = env!("CARGO_BIN_EXE_trust-fabric");

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The code blocks of a section by the begin of its title: language and text.
fn section(page: &str, title: &str) -> Vec<(String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide").join(page);
    let page = std::fs::read_to_string(page).expect("page");
    let (_, section) = page.split_once(&format!("\n## {title}")).expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let blocks = section.split("\n```").skip(1).step_by(2);
    let read = |block: &str| block.split_once('\n').map(|(language, text)| (language.into(), text.into()));
    blocks.map(|block| read(block).expect("a language")).collect()
}

/// The blocks with free ports of this machine.
fn on_free_ports(mut blocks: Vec<(String, String)>) -> Vec<(String, String)> {
    let [http, https] = ports::free().map(|address| address.port().to_string());
    for (_, text) in &mut blocks {
        *text = text.replace("8693", &http).replace("8694", &https);
    }
    blocks
}

fn shell(directory: &Path, commands: &str) -> Command {
    let programs = Path::new(PROGRAM).parent().expect("a directory").display();
    let mut shell = Command::new("sh");
    // The shell sets `PATH` itself, so that this process does not read its own.
    shell.args(["-euc", &format!("PATH=\"{programs}:$PATH\"\n{commands}")]).current_dir(directory);
    shell
}

#[test]
fn guide_commands_for_tls_work_in_order() {
    let directory = tempfile::tempdir().expect("directory");
    let at = directory.path();
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    std::os::unix::fs::symlink(policies, at.join("policies")).expect("policies");
    let blocks = on_free_ports(section("tutorial.md", "With TLS"));
    let languages: Vec<_> = blocks.iter().map(|(language, _)| language.as_str()).collect();
    assert_eq!(languages, ["sh", "toml", "sh", "sh"]);
    let run = |commands: &str| {
        let output = shell(at, commands).output().expect("a shell");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{commands}\n{printed}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&blocks[0].1);
    std::fs::write(at.join("node.toml"), &blocks[1].1).expect("written");
    run("trust-fabric config check --config node.toml");
    let serving = format!("exec {}", blocks[2].1.trim());
    let mut node =
        Running(shell(at, &serving).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started"));
    let log = BufReader::new(node.0.stderr.take().expect("log"));
    let mut lines = log.lines().map_while(Result::ok);
    let printed: Vec<_> =
        lines.by_ref().take_while(|line| !line.contains(r#""message":"serving""#)).collect();
    assert!(node.0.try_wait().expect("status").is_none(), "{printed:?}");
    let answers = run(&blocks[3].1);
    assert!(answers.contains(r#""state":"active""#) && answers.contains("active"), "{answers}");
    // "Without a certificate both are refused."
    for command in blocks[3].1.lines().filter(|line| !line.trim().is_empty()) {
        let without =
            command.replace("--cert pki/operator.pem", "").replace("--key pki/operator-key.pem", "");
        let output = shell(at, &without).output().expect("a shell");
        assert!(!output.status.success(), "{without}");
    }
}

/// Regression: two commands had never been run. The stream had no audience, and the body no media type.
#[tokio::test]
async fn guide_commands_for_streams_work_in_order() {
    let node = Node::start().await;
    let directory = tempfile::tempdir().expect("directory");
    let mut stream_id = "none".to_owned();
    let (_, commands) = section("streams.md", "Try it").remove(0);
    for line in commands.lines() {
        let (command, _) = line.split_once("  #").unwrap_or((line, ""));
        let command =
            command.replace("<stream_id>", &stream_id).replace("http://127.0.0.1:8693", node.base());
        let is_ours = command.starts_with("trust-fabric ");
        let server = if is_ours { format!("--server {}", node.base()) } else { String::new() };
        let output = shell(directory.path(), &format!("{command} {server}")).output().expect("a shell");
        let printed = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !printed.contains("\"error\""),
            "{command}: {printed}{complained}"
        );
        if command.contains("stream create") {
            stream_id = printed.split_whitespace().nth(1).expect("an id").to_owned();
        } else if !is_ours {
            let answer: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
            assert_eq!(answer["sets"].as_object().map(serde_json::Map::len), Some(1), "{printed}");
        }
    }
    assert_eq!(node.get("/v1/signals/stream").await.json(), serde_json::json!([]));
}

/// Regression: a second checkout, older than the last build of the first, ran the first one's program and
/// tests, because cargo reused the shared target directory.
#[test]
fn checkout_after_another_is_rebuilt() {
    let directory = tempfile::tempdir().expect("directory");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let checkouts = ["first", "second"].map(|name| directory.path().join(name));
    for checkout in &checkouts {
        let members = ["bench", "charts", "client", "fabric-spec", "jepsen", "models", "provider"];
        for directory in ["scripts", "src", "tests", "proto"].iter().chain(&members) {
            std::fs::create_dir_all(checkout.join(directory)).expect("directory");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/checkout.sh");
        std::fs::copy(script, checkout.join("scripts/checkout.sh")).expect("the script");
        for file in ["build.rs", "src/lib.rs"] {
            File::create(checkout.join(file)).and_then(|file| file.set_modified(long_ago)).expect("a file");
        }
    }
    let begins = |checkout: &Path| {
        let mut script = Command::new(checkout.join("scripts/checkout.sh"));
        let run = script.env("CARGO_TARGET_DIR", directory.path().join("target")).output().expect("it runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let file = checkout.join("src/lib.rs");
        let made_young =
            std::fs::metadata(&file).and_then(|file| file.modified()).expect("a time") != long_ago;
        File::options().write(true).open(file).and_then(|file| file.set_modified(long_ago)).expect("a file");
        made_young
    };
    let [first, second] = &checkouts;
    assert_eq!([first, first, second, second, first].map(|at| begins(at)), [true, false, true, false, true]);
}

/// A link to the program in a directory without the bench.
fn program_alone() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let program = directory.path().join("trust-fabric");
    std::fs::hard_link(PROGRAM, &program).expect("the same file system");
    (directory, program)
}

#[test]
fn bench_receives_all_arguments_and_returns_its_exit_code() {
    let (directory, program) = program_alone();
    let bench = directory.path().join("trust-fabric-bench");
    std::fs::write(&bench, "#!/bin/sh\necho \"$# $*\"\nexit 7\n").expect("written");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&bench, permissions).expect("made a program");
    for (arguments, printed) in [
        (vec!["failover", "--rounds", "3", "--help"], "4 failover --rounds 3 --help\n"),
        (vec!["--help"], "1 --help\n"),
        (vec![], "0 \n"),
    ] {
        let output = Command::new(&program).arg("bench").args(arguments).output().expect("run the program");
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
            (Some(7), printed)
        );
    }
}

#[test]
fn without_the_bench_the_command_says_where_it_comes_from() {
    let (_directory, program) = program_alone();
    let output =
        Command::new(&program).env("PATH", "/nowhere").args(["bench", "failover"]).output().expect("run");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("trust-fabric-bench was not found") && printed.contains("cargo build"),
        "{printed}"
    );
}

#[test]
fn cli_page_equals_help() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/reference.py");
    let output =
        Command::new(script).args(["cli", "--check", "--program", PROGRAM]).output().expect("run it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
