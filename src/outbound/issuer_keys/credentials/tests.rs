//! Files that cannot be used. `tests/http/in_cluster.rs` has the fetches.

use std::fs;

use super::*;

#[tokio::test]
async fn unusable_file_is_refused_and_names_itself() {
    let directory = tempfile::tempdir().expect("directory");
    let [ca, token] = ["ca.crt", "token"].map(|name| directory.path().join(name));
    let refused = async |ca: Option<&PathBuf>, token: Option<&PathBuf>| {
        let files = FetchFiles { ca: ca.cloned(), bearer_token: token.cloned() };
        read(&files).await.expect_err("refused").to_string()
    };
    let long = vec![b'a'; limits::TOKEN_BYTES_MAX + 1];
    for content in [&b""[..], b"\n", b"two words", b"line\r\nx-injected: 1", b"\xff", &long] {
        fs::write(&token, content).expect("written");
        let rule = format!("is not a bearer token of at most {} bytes", limits::TOKEN_BYTES_MAX);
        let expected = format!("bearer_token_file {}: {rule}", token.display());
        assert_eq!(refused(None, Some(&token)).await, expected);
    }
    fs::remove_file(&token).expect("removed");
    let absent = refused(None, Some(&token)).await;
    assert!(absent.starts_with("bearer_token_file ") && absent.contains("No such file"), "{absent}");
    fs::write(&ca, "no PEM").expect("written");
    assert_eq!(
        refused(Some(&ca), None).await,
        format!("ca_file {}: is not PEM with certificates", ca.display())
    );
}
