//! The values that the provider keeps beside a resource's state, which Terraform stores and never shows: no secret.
//!
//! Lines of `name: value`. JSON would look like a token in the base64 of Terraform's state, and a search for tokens would
//! find it.

/// The private state of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Private {
    /// `ETag` of the record that was last read.
    pub etag: Option<String>,
    /// The identity that created it: a SPIFFE ID, or the `sub` of a bearer token.
    pub owner: Option<String>,
}

impl Private {
    /// From the bytes that Terraform stored. Unreadable ones count as none: an import has none either.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
        };
        Self { etag: value("etag"), owner: value("owner") }
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let lines = [("etag", &self.etag), ("owner", &self.owner)];
        let lines =
            lines.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}\n", value.as_ref()?)));
        lines.collect::<String>().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_round_trip() {
        let some = |text: &str| Some(text.to_owned());
        for private in [
            Private::default(),
            Private { etag: some("\"1.2\""), owner: None },
            Private { etag: some("\"1.2\""), owner: some("spiffe://td/a: b") },
        ] {
            assert_eq!(Private::decode(&private.encode()), private);
        }
        assert_eq!(Private::decode(&[0xff, b'\n']), Private::default());
    }
}
