//! Files of `kubectl` (kubeconfig): the part that names an API server, its CA and a user.
//!
//! A setting that would be ignored, and without which the connection is another, is refused: a proxy, a server that is
//! not verified, a plugin of an old version.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::exec::Exec;
use super::{Certificate, Server, Token, User};
use crate::limits;

/// The API server and the user of a context in these files; of the same name, the first is used. Without `context`, the
/// first `current-context`.
///
/// # Errors
/// The reason in words.
pub fn read(paths: &[PathBuf], context: Option<&str>) -> Result<Server, String> {
    let files: Vec<(PathBuf, Json)> = paths.iter().map(|path| parse(path)).collect::<Result<_, _>>()?;
    let current = || files.iter().find_map(|(_, file)| text(file, "current-context"));
    let names = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let context = context.or_else(current).ok_or_else(|| format!("{names}: has no current-context"))?;
    let of = |list: &str, entry: &str, name: &str| {
        let found = files.iter().find_map(|(path, file)| Some((path, named(file, list, name)?.get(entry)?)));
        found.ok_or_else(|| format!("{names}: has no {entry} {name:?}"))
    };
    let (path, stated) = of("contexts", "context", context)?;
    let part = |key: &str| {
        text(stated, key).ok_or_else(|| format!("{}: context {context:?} has no {key}", path.display()))
    };
    let (cluster_path, cluster) = of("clusters", "cluster", part("cluster")?)?;
    let (user_path, stated_user) = of("users", "user", part("user")?)?;
    let cluster = Section { path: cluster_path, value: cluster };
    cluster.refuse(&["insecure-skip-tls-verify", "proxy-url", "tls-server-name"])?;
    let url = text(cluster.value, "server").ok_or_else(|| cluster.error("has no server"))?;
    let ca = cluster.bytes("certificate-authority")?;
    Ok(Server::new(url.to_owned(), ca, user(&Section { path: user_path, value: stated_user })?))
}

/// A part of a file.
struct Section<'f> {
    path: &'f Path,
    value: &'f Json,
}

impl Section<'_> {
    fn error(&self, text: impl std::fmt::Display) -> String {
        format!("{}: {text}", self.path.display())
    }

    /// Refuses settings that are stated and true.
    fn refuse(&self, keys: &[&str]) -> Result<(), String> {
        let is_used = |key: &&&str| self.value.get(**key).is_some_and(|value| !is_nothing(value));
        match keys.iter().find(is_used) {
            Some(key) => Err(self.error(format_args!("{key} is not supported"))),
            None => Ok(()),
        }
    }

    /// A path, relative to the file.
    fn place(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The bytes of `<key>-data` in base64, or of the file `<key>`.
    fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        let data = format!("{key}-data");
        if let Some(encoded) = text(self.value, &data) {
            let decoded = STANDARD.decode(encoded);
            return decoded.map(Some).map_err(|_| self.error(format_args!("{data} is no base64")));
        }
        text(self.value, key).map(|path| bytes(&self.place(path))).transpose()
    }
}

fn user(section: &Section<'_>) -> Result<User, String> {
    section.refuse(&[
        "auth-provider",
        "username",
        "password",
        "as",
        "as-groups",
        "as-uid",
        "as-user-extra",
    ])?;
    let certificate = section.bytes("client-certificate")?;
    let certificate = match (certificate, section.bytes("client-key")?) {
        (None, None) => None,
        (Some(certificate), Some(private_key)) => Some(Certificate { certificate, private_key }),
        _ => return Err(section.error("client-certificate and client-key go together")),
    };
    let token = text(section.value, "token").map(|token| Token::Text(token.to_owned()));
    let token_file = || text(section.value, "tokenFile").map(|path| Token::File(section.place(path)));
    let exec = section.value.get("exec").map(|stated| program(section, stated)).transpose()?;
    Ok(User { token: token.or_else(token_file), certificate, exec })
}

fn program(section: &Section<'_>, stated: &Json) -> Result<Exec, String> {
    Section { path: section.path, value: stated }.refuse(&["provideClusterInfo"])?;
    let command = text(stated, "command").ok_or_else(|| section.error("exec has no command"))?;
    let api_version = text(stated, "apiVersion").unwrap_or_default();
    // A bare name is found on PATH, every other is relative to the file.
    let command = if command.contains('/') { section.place(command) } else { PathBuf::from(command) };
    let list = |key: &str| stated.get(key).and_then(Json::as_array).into_iter().flatten();
    let arguments = list("args").filter_map(Json::as_str).map(str::to_owned).collect();
    let variable = |pair: &Json| Some((text(pair, "name")?.to_owned(), text(pair, "value")?.to_owned()));
    let environment = list("env").filter_map(variable).collect();
    Exec::new(api_version, command, arguments, environment).map_err(|rule| section.error(rule))
}

fn parse(path: &Path) -> Result<(PathBuf, Json), String> {
    let bytes = bytes(path)?;
    let parsed = yaml_serde::from_slice(&bytes);
    // The error of the parser may quote the file, which has secrets.
    let parsed: Json = parsed.map_err(|_| format!("{}: is no YAML", path.display()))?;
    Ok((path.to_owned(), parsed))
}

/// The bytes of a file, up to the limit.
///
/// # Errors
/// The path and the cause.
pub fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limits::KUBECONFIG_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(bytes)
}

fn named<'f>(file: &'f Json, list: &str, name: &str) -> Option<&'f Json> {
    file.get(list)?.as_array()?.iter().find(|entry| text(entry, "name") == Some(name))
}

fn text<'f>(value: &'f Json, key: &str) -> Option<&'f str> {
    value.get(key).and_then(Json::as_str).filter(|text| !text.is_empty())
}

fn is_nothing(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.is_empty(),
        _ => false,
    }
}
