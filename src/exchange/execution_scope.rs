//! Execution scope: a token for one action (contract §3). Field names follow RFC 9449, without its proof of possession.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Error;
use crate::token::BodyHash;
use crate::{limits, text};

/// Binds a token to one HTTP action. Unknown fields are refused: dropping a constraint silently would widen the token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutionScope {
    /// HTTP method, for example `POST`.
    #[schema(required = true, value_type = String)]
    pub htm: Option<String>,
    /// Target URI, absolute, without query and fragment.
    #[schema(required = true, value_type = String)]
    pub htu: Option<String>,
    /// SHA-256 of the request body, 32 bytes in base64url.
    pub payload_hash: Option<String>,
    /// Accepted once per subject in the whole cluster.
    pub nonce: Option<String>,
    /// Operation; default: `htm`.
    pub exec_act: Option<String>,
    /// Target of the operation; default: `htu`.
    pub target: Option<String>,
}

impl ExecutionScope {
    /// The operation that the token permits: `exec_act`, by default `htm`.
    #[must_use]
    pub fn operation(&self) -> Option<&str> {
        self.exec_act.as_deref().or(self.htm.as_deref())
    }

    /// The target of the operation: `target`, by default `htu`.
    #[must_use]
    pub fn operation_target(&self) -> Option<&str> {
        self.target.as_deref().or(self.htu.as_deref())
    }

    /// Checks every field and normalizes `payload_hash`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the first field that breaks its rule.
    pub fn check(self) -> Result<Self, Error> {
        let htm = self.htm.as_deref().ok_or(invalid("execution_scope.htm", "is required"))?;
        // RFC 9110 §9.1: a method is a token; all registered ones are capital letters.
        if !(1..=32).contains(&htm.len()) || !htm.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
            return Err(invalid("execution_scope.htm", "must be an HTTP method in capital letters"));
        }
        let htu = self.htu.as_deref().ok_or(invalid("execution_scope.htu", "is required"))?;
        // RFC 9449 §4.2: "without query and fragment parts".
        if !text::is_absolute_uri(htu) || htu.contains('?') {
            return Err(invalid("execution_scope.htu", "must be an absolute URI without query and fragment"));
        }
        for (field, value, bytes_max) in [
            ("execution_scope.nonce", &self.nonce, limits::OPAQUE_BYTES_MAX),
            ("execution_scope.exec_act", &self.exec_act, limits::OPAQUE_BYTES_MAX),
            ("execution_scope.target", &self.target, limits::URI_BYTES_MAX),
        ] {
            if value.as_deref().is_some_and(|value| !text::is_printable(value, bytes_max)) {
                return Err(invalid(field, "must be printable ASCII without spaces, within its limit"));
            }
        }
        let payload_hash = self.payload_hash.as_deref().map(payload_hash).transpose()?;
        Ok(Self { payload_hash, ..self })
    }
}

fn payload_hash(text: &str) -> Result<String, Error> {
    let hash: Result<BodyHash, _> = text.parse();
    let rule = "must be a SHA-256 digest, 32 bytes in base64url";
    hash.map(|hash| hash.to_string()).map_err(|_| invalid("execution_scope.payload_hash", rule))
}

const fn invalid(field: &'static str, rule: &'static str) -> Error {
    Error::Invalid { field, rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> ExecutionScope {
        ExecutionScope {
            htm: Some("POST".into()),
            htu: Some("https://tools.example.com/sql".into()),
            ..ExecutionScope::default()
        }
    }

    fn refused(scope: ExecutionScope) -> &'static str {
        match scope.check() {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn digest_with_and_without_padding_is_normalized() {
        let bare = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        for text in [bare.to_owned(), format!("{bare}=")] {
            let checked = ExecutionScope { payload_hash: Some(text), ..scope() }.check().expect("good");
            assert_eq!(checked.payload_hash.as_deref(), Some(bare));
        }
    }

    #[test]
    fn digest_of_other_length_or_alphabet_is_refused() {
        for text in [
            "",
            "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuA",
            "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFUA",
            "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFV",
        ] {
            let scope = ExecutionScope { payload_hash: Some(text.into()), ..scope() };
            assert_eq!(refused(scope), "execution_scope.payload_hash", "{text}");
        }
    }

    #[test]
    fn method_and_target_are_required_and_strict() {
        assert_eq!(refused(ExecutionScope { htm: None, ..scope() }), "execution_scope.htm");
        assert_eq!(refused(ExecutionScope { htu: None, ..scope() }), "execution_scope.htu");
        for htm in ["", "post", "PO ST", "POST\n"] {
            assert_eq!(refused(ExecutionScope { htm: Some(htm.into()), ..scope() }), "execution_scope.htm");
        }
        for htu in ["", "/sql", "https://a/b?c", "https://a/b#c", "https://a b", "https://a/\u{e9}"] {
            assert_eq!(refused(ExecutionScope { htu: Some(htu.into()), ..scope() }), "execution_scope.htu");
        }
    }

    #[test]
    fn unknown_constraint_is_refused() {
        let error = crate::json::read::<ExecutionScope>(br#"{"htm":"GET","htu":"a:b","max_uses":1}"#)
            .expect_err("unknown field");
        assert!(error.to_string().contains("max_uses"), "{error}");
    }
}
