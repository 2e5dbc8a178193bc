//! Subject identifiers: whom a security event is about (RFC 9493, SSF 1.0, specification "`sub_id` fields").
//!
//! Reading is about form only; whether the sender may speak for the subject is decided by who receives.
//! Every text is kept byte for byte, an email address too. Two spellings of one subject meet in their digest
//! (`lineage`).

use serde_json::{Map, Value};

use crate::id::WorkloadId;
use crate::limits;

/// Whom an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectId {
    /// `spiffe_id` (specification).
    SpiffeId(WorkloadId),
    /// `uri` (RFC 9493 §3.2.7), of a workload only.
    Uri(WorkloadId),
    /// `email` (RFC 9493 §3.2.2), as it was sent.
    Email(String),
    /// `iss_sub` (RFC 9493 §3.2.3).
    IssSub {
        /// Who names the subject.
        iss: String,
        /// How.
        sub: String,
    },
    /// `opaque` (RFC 9493 §3.2.4).
    Opaque(String),
    /// `jwt_id` (SSF 1.0 §3.5.1): one token.
    JwtId {
        /// Who issued it.
        iss: String,
        /// Its `jti`.
        jti: String,
    },
    /// `complex` (SSF 1.0 §3.3).
    Complex(Box<Complex>),
    /// `aliases` (RFC 9493 §3.2.8): at least one, at most `SUBJECT_ALIASES_MAX`, none of them `complex` or
    /// `aliases`.
    Aliases(Vec<SubjectId>),
    /// A format that is known, was well formed and names nothing that a credential here derives from.
    Unusable {
        /// `account`, `did`, `phone_number`, `ip-addresses` or `saml_assertion_id`.
        format: String,
    },
}

/// The members of a complex subject. At least one is there, and none is `complex` or `aliases`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Complex {
    /// `user`.
    pub user: Option<SubjectId>,
    /// `device`.
    pub device: Option<SubjectId>,
    /// `session`.
    pub session: Option<SubjectId>,
    /// `application`.
    pub application: Option<SubjectId>,
    /// `tenant`.
    pub tenant: Option<SubjectId>,
    /// `org_unit`.
    pub org_unit: Option<SubjectId>,
    /// `group`.
    pub group: Option<SubjectId>,
}

/// Which member breaks which rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {rule}")]
pub struct Error {
    /// Its path, for example `sub_id.user.email`.
    pub field: String,
    /// What it must be.
    pub rule: &'static str,
}

impl SubjectId {
    /// Reads the identifier that stands at `path`. Members that its format does not have are ignored; how
    /// many there can be is bounded by the document.
    ///
    /// # Errors
    /// [`Error`]: the format is not known, or a member of it is absent, of another type, empty, too long or
    /// not what it must name.
    pub fn read(value: &Value, path: &str) -> Result<Self, Error> {
        let members = Members::of(value, path)?;
        match members.format()? {
            "complex" => members.complex(),
            "aliases" => members.aliases(),
            format => members.simple(format),
        }
    }

    /// `format`, as it was sent.
    #[must_use]
    pub fn format(&self) -> &str {
        match self {
            Self::SpiffeId(_) => "spiffe_id",
            Self::Uri(_) => "uri",
            Self::Email(_) => "email",
            Self::IssSub { .. } => "iss_sub",
            Self::Opaque(_) => "opaque",
            Self::JwtId { .. } => "jwt_id",
            Self::Complex(_) => "complex",
            Self::Aliases(_) => "aliases",
            Self::Unusable { format } => format,
        }
    }

    /// Whether both name one subject (SSF 1.0 §8.1.3.1): two simple subjects if they are "exactly identical", two
    /// complex ones if every member is that or missing on one side. A workload may be named in either of its
    /// formats, and aliases match what any of them matches. What names nothing here matches nothing.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Aliases(aliases), other) | (other, Self::Aliases(aliases)) => {
                aliases.iter().any(|alias| alias.matches(other))
            }
            (Self::Complex(one), Self::Complex(other)) => one.matches(other),
            (Self::SpiffeId(one) | Self::Uri(one), Self::SpiffeId(other) | Self::Uri(other)) => one == other,
            (Self::Unusable { .. }, Self::Unusable { .. }) => false,
            (one, other) => one == other,
        }
    }
}

impl Complex {
    /// The members that are there, with their names.
    #[must_use]
    pub fn members(&self) -> Vec<(&'static str, &SubjectId)> {
        let members = COMPLEX.into_iter().zip(self.all());
        members.filter_map(|(name, member)| Some((name, member?))).collect()
    }

    /// All members, in the order of [`COMPLEX`].
    fn all(&self) -> [Option<&SubjectId>; 7] {
        let Self { user, device, session, application, tenant, org_unit, group } = self;
        [user, device, session, application, tenant, org_unit, group].map(Option::as_ref)
    }

    fn matches(&self, other: &Self) -> bool {
        self.all().into_iter().zip(other.all()).all(|members| match members {
            (Some(one), Some(other)) => one.matches(other),
            _ => true,
        })
    }
}

/// How long a text may be, and the rule in words.
struct Text {
    bytes_max: usize,
    rule: &'static str,
}

/// `iss`, and whatever is a URI elsewhere.
const ISS: Text = Text { bytes_max: limits::URI_BYTES_MAX, rule: "must be a string of 1 to 2048 bytes" };
/// What stands in `sub` of a credential.
const SUB: Text =
    Text { bytes_max: limits::WORKLOAD_ID_BYTES_MAX, rule: "must be a string of 1 to 2048 bytes" };
const EMAIL: Text = Text { bytes_max: limits::EMAIL_BYTES_MAX, rule: "must be a string of 1 to 320 bytes" };
const JTI: Text = Text { bytes_max: limits::OPAQUE_BYTES_MAX, rule: "must be a string of 1 to 256 bytes" };

/// Formats that have no effect here, with the members they must have.
const UNUSABLE: [(&str, &[&str]); 4] = [
    ("account", &["uri"]),
    ("did", &["url"]),
    ("phone_number", &["phone_number"]),
    ("saml_assertion_id", &["issuer", "assertion_id"]),
];

/// One identifier's members and where it stands.
struct Members<'v> {
    members: &'v Map<String, Value>,
    path: &'v str,
}

impl<'v> Members<'v> {
    fn of(value: &'v Value, path: &'v str) -> Result<Self, Error> {
        let members = value.as_object();
        let members = members.ok_or_else(|| Error { field: path.to_owned(), rule: "must be an object" })?;
        Ok(Self { members, path })
    }

    fn broken(&self, name: &str, rule: &'static str) -> Error {
        Error { field: format!("{}.{name}", self.path), rule }
    }

    fn format(&self) -> Result<&'v str, Error> {
        let format = self.members.get("format").and_then(Value::as_str);
        format.ok_or_else(|| self.broken("format", "must be a string"))
    }

    fn text(&self, name: &str, text: &Text) -> Result<String, Error> {
        let found = self.members.get(name).and_then(Value::as_str);
        let fitting = found.filter(|found| (1..=text.bytes_max).contains(&found.len()));
        fitting.map(ToOwned::to_owned).ok_or_else(|| self.broken(name, text.rule))
    }

    fn workload(&self, name: &str, scheme: &str, rule: &'static str) -> Result<WorkloadId, Error> {
        let text = self.members.get(name).and_then(Value::as_str).filter(|text| text.starts_with(scheme));
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.broken(name, rule))
    }

    /// An identifier that holds no other.
    fn simple(&self, format: &str) -> Result<SubjectId, Error> {
        match format {
            "spiffe_id" => {
                let rule = "must be a SPIFFE ID (spiffe://, a trust domain and a path)";
                self.workload("spiffe_id", "spiffe://", rule).map(SubjectId::SpiffeId)
            }
            "uri" => {
                let rule = "must be a workload identifier (wimse:// or spiffe://, a trust domain and a path)";
                self.workload("uri", "", rule).map(SubjectId::Uri)
            }
            "email" => self.text("email", &EMAIL).map(SubjectId::Email),
            "iss_sub" => Ok(SubjectId::IssSub { iss: self.text("iss", &ISS)?, sub: self.text("sub", &SUB)? }),
            "opaque" => self.text("id", &SUB).map(SubjectId::Opaque),
            "jwt_id" => Ok(SubjectId::JwtId { iss: self.text("iss", &ISS)?, jti: self.text("jti", &JTI)? }),
            // RFC 9493 §3.2.8: aliases "MUST NOT be nested"; SSF 1.0 §3.3: members are simple subjects.
            "complex" | "aliases" => Err(self.broken("format", "must not be complex or aliases here")),
            format => self.unusable(format),
        }
    }

    fn unusable(&self, format: &str) -> Result<SubjectId, Error> {
        let unusable = || SubjectId::Unusable { format: format.to_owned() };
        if format == "ip-addresses" {
            let addresses = self.members.get(format).and_then(Value::as_array);
            let are_good =
                addresses.is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string));
            return if are_good {
                Ok(unusable())
            } else {
                Err(self.broken(format, "must be an array of strings, at least one"))
            };
        }
        let Some((_, names)) = UNUSABLE.iter().find(|(known, _)| *known == format) else {
            return Err(self.broken("format", "is not a known format of subject identifiers"));
        };
        names.iter().try_for_each(|name| self.text(name, &ISS).map(drop))?;
        Ok(unusable())
    }

    fn complex(&self) -> Result<SubjectId, Error> {
        let mut is_empty = true;
        let mut member = |name: &str| {
            let Some(value) = self.members.get(name) else { return Ok(None) };
            is_empty = false;
            inner(value, &format!("{}.{name}", self.path)).map(Some)
        };
        let complex = Complex {
            user: member("user")?,
            device: member("device")?,
            session: member("session")?,
            application: member("application")?,
            tenant: member("tenant")?,
            org_unit: member("org_unit")?,
            group: member("group")?,
        };
        if is_empty {
            let rule = "must have user, device, session, application, tenant, org_unit or group";
            return Err(Error { field: self.path.to_owned(), rule });
        }
        Ok(SubjectId::Complex(Box::new(complex)))
    }

    fn aliases(&self) -> Result<SubjectId, Error> {
        let aliases = self.members.get("identifiers").and_then(Value::as_array);
        let aliases = aliases
            .filter(|aliases| (1..=limits::SUBJECT_ALIASES_MAX).contains(&aliases.len()))
            .ok_or_else(|| self.broken("identifiers", "must be an array of 1 to 16 subject identifiers"))?;
        let alias = |(at, value)| inner(value, &format!("{}.identifiers[{at}]", self.path));
        let aliases: Result<Vec<SubjectId>, Error> = aliases.iter().enumerate().map(alias).collect();
        aliases.map(SubjectId::Aliases)
    }
}

/// An identifier inside another: it holds none itself.
fn inner(value: &Value, path: &str) -> Result<SubjectId, Error> {
    let members = Members::of(value, path)?;
    members.simple(members.format()?)
}

/// The members of each format that holds no other, beside `format`.
const MEMBERS: [(&str, &[&str]); 10] = [
    ("uri", &["uri"]),
    ("email", &["email"]),
    ("iss_sub", &["iss", "sub"]),
    ("opaque", &["id"]),
    ("jwt_id", &["iss", "jti"]),
    ("account", &["uri"]),
    ("did", &["url"]),
    ("phone_number", &["phone_number"]),
    ("saml_assertion_id", &["issuer", "assertion_id"]),
    ("ip-addresses", &["ip-addresses"]),
];

/// The members of a complex subject.
const COMPLEX: [&str; 7] = ["user", "device", "session", "application", "tenant", "org_unit", "group"];

/// An identifier that [`SubjectId::read`] took, as it is said to others: with the members of its format and no
/// others; a `spiffe_id`, which is not registered, as `uri`; and an `opaque` one of `told_by`, which nobody else
/// knows, as `iss_sub`.
#[must_use]
pub fn passed_on(value: &Value, told_by: Option<&str>) -> Value {
    let member = |name: &str| value.get(name).cloned().unwrap_or_default();
    let format = value.get("format").and_then(Value::as_str).unwrap_or_default();
    let mut members = Map::new();
    let mut put = |name: &str, value: Value| drop(members.insert(name.to_owned(), value));
    put("format", format.into());
    match (format, told_by) {
        ("spiffe_id", _) => {
            put("format", "uri".into());
            put("uri", member("spiffe_id"));
        }
        ("opaque", Some(iss)) => {
            put("format", "iss_sub".into());
            put("iss", iss.into());
            put("sub", member("id"));
        }
        ("complex", _) => {
            for name in COMPLEX {
                if let Some(inner) = value.get(name) {
                    put(name, passed_on(inner, told_by));
                }
            }
        }
        ("aliases", _) => {
            let identifiers = value.get("identifiers").and_then(Value::as_array);
            let identifiers = identifiers.into_iter().flatten();
            put("identifiers", identifiers.map(|inner| passed_on(inner, told_by)).collect());
        }
        _ => {
            let known = MEMBERS.iter().find(|(known, _)| *known == format);
            for name in known.iter().flat_map(|(_, names)| names.iter()) {
                put(name, member(name));
            }
        }
    }
    Value::Object(members)
}

/// Whom an identifier that [`SubjectId::read`] took names, as one text for people: of several, the first.
#[must_use]
pub fn text(value: &Value) -> String {
    let first = match value.get("format").and_then(Value::as_str) {
        Some("complex") => COMPLEX.iter().find_map(|name| value.get(*name)),
        Some("aliases") => value.get("identifiers").and_then(|identifiers| identifiers.get(0)),
        _ => None,
    };
    let texts = ["spiffe_id", "uri", "email", "sub", "id", "jti", "url", "phone_number", "assertion_id"];
    match first {
        // It holds no other.
        Some(first) => text(first),
        None => texts.iter().find_map(|name| value.get(*name)?.as_str()).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::token::foreign::verify_foreign;
    use crate::token::issuer::{ALGORITHMS_DEFAULT, Issuer, IssuerKind, KeySource, SubjectMapping};
    use crate::token::jws::Compact;
    use crate::token::lineage;
    use crate::token::signature_cache::SignatureCache;
    use crate::token::testing::{NOW_SECS, Signer, now, with};

    const ISS_URI: &str = "https://issuer.example";
    const WIMSE: &str = "wimse://trust.example/ns/shop/sa/cart";
    const SPIFFE: &str = "spiffe://trust.example/ns/shop/sa/cart";

    /// What is passed on of an identifier of this issuer; both must be ones that can be read.
    fn told(value: &Value) -> Value {
        let passed = passed_on(value, Some(ISS_URI));
        for value in [value, &passed] {
            assert!(SubjectId::read(value, "sub_id").is_ok(), "{value}");
        }
        assert_eq!(passed_on(&passed, Some("https://other.example")), passed, "said on, it stays as it is");
        passed
    }

    #[test]
    fn a_subject_is_passed_on_as_others_know_it_with_the_members_of_its_format_only() {
        let opaque = json!({"format": "opaque", "id": "7"});
        let iss_sub = json!({"format": "iss_sub", "iss": ISS_URI, "sub": "7"});
        let (spiffe_id, uri) =
            (json!({"format": "spiffe_id", "spiffe_id": SPIFFE}), json!({"format": "uri", "uri": SPIFFE}));
        let email = json!({"format": "email", "email": "t@a.example"});
        for (value, expected) in [
            (spiffe_id.clone(), uri.clone()),
            (opaque.clone(), iss_sub.clone()),
            (
                json!({"format": "complex", "user": opaque, "tenant": email, "other": {}}),
                json!({"format": "complex", "user": iss_sub, "tenant": email}),
            ),
            (
                json!({"format": "aliases", "identifiers": [opaque, spiffe_id], "other": 1}),
                json!({"format": "aliases", "identifiers": [iss_sub, uri]}),
            ),
        ] {
            assert_eq!(told(&value), expected);
        }
        for same in [
            json!({"format": "uri", "uri": WIMSE}),
            email,
            json!({"format": "iss_sub", "iss": "https://other.example", "sub": "x"}),
            json!({"format": "jwt_id", "iss": ISS_URI, "jti": "1"}),
            json!({"format": "account", "uri": "acct:a@b.example"}),
            json!({"format": "did", "url": "did:example:1"}),
            json!({"format": "phone_number", "phone_number": "+12065550100"}),
            json!({"format": "saml_assertion_id", "issuer": ISS_URI, "assertion_id": "_1"}),
            json!({"format": "ip-addresses", "ip-addresses": ["192.0.2.1"]}),
        ] {
            assert_eq!(told(&same), same);
            assert_eq!(told(&with(&same, &json!({"more": "x".repeat(100_000)}))), same);
        }
        // A receiver's own word for a subject has no issuer.
        assert_eq!(passed_on(&opaque, None), opaque);
    }

    #[test]
    fn a_subject_is_one_text_for_people() {
        let opaque = |id: &str| json!({"format": "opaque", "id": id});
        for (value, expected) in [
            (json!({"format": "spiffe_id", "spiffe_id": SPIFFE}), SPIFFE),
            (json!({"format": "uri", "uri": WIMSE}), WIMSE),
            (json!({"format": "email", "email": "a@b.example"}), "a@b.example"),
            (json!({"format": "iss_sub", "iss": ISS_URI, "sub": "x"}), "x"),
            (opaque("7"), "7"),
            (json!({"format": "jwt_id", "iss": ISS_URI, "jti": "1"}), "1"),
            (json!({"format": "complex", "tenant": opaque("t"), "user": opaque("u")}), "u"),
            (json!({"format": "aliases", "identifiers": [opaque("1"), opaque("2")]}), "1"),
            (json!({"format": "ip-addresses", "ip-addresses": ["192.0.2.1"]}), ""),
            // What is no identifier names nobody.
            (json!([]), ""),
            (json!({"format": "aliases", "identifiers": []}), ""),
        ] {
            assert_eq!(text(&value), expected, "{value}");
        }
    }

    fn read(value: &Value) -> Result<SubjectId, Error> {
        SubjectId::read(value, "sub_id")
    }

    /// Where a refused identifier is at fault.
    fn fault(value: &Value) -> String {
        read(value).expect_err(&value.to_string()).field
    }

    /// One good identifier of each format that holds no other.
    fn simple() -> Vec<Value> {
        vec![
            json!({"format": "spiffe_id", "spiffe_id": SPIFFE}),
            json!({"format": "uri", "uri": WIMSE}),
            json!({"format": "email", "email": "a@b.example"}),
            json!({"format": "iss_sub", "iss": ISS_URI, "sub": "145234573"}),
            json!({"format": "opaque", "id": "dMTlD|1600802906337.16|16008.16"}),
            json!({"format": "jwt_id", "iss": ISS_URI, "jti": "B70BA622-9515-4353-A866-823539EECBC8"}),
            json!({"format": "account", "uri": "acct:a@b.example"}),
            json!({"format": "did", "url": "did:example:123456/path"}),
            json!({"format": "phone_number", "phone_number": "+12065550100"}),
            json!({"format": "saml_assertion_id", "issuer": ISS_URI, "assertion_id": "_8e8dc5f6"}),
            json!({"format": "ip-addresses", "ip-addresses": ["10.29.37.75", "2001:db8:0:0::1"]}),
        ]
    }

    #[test]
    fn every_format_is_read_as_what_it_names() {
        let workload = |text: &str| text.parse::<WorkloadId>().expect("workload");
        let (iss, unusable) =
            (ISS_URI.to_owned(), |format: &str| SubjectId::Unusable { format: format.into() });
        let expected = [
            SubjectId::SpiffeId(workload(SPIFFE)),
            SubjectId::Uri(workload(WIMSE)),
            SubjectId::Email("a@b.example".to_owned()),
            SubjectId::IssSub { iss: iss.clone(), sub: "145234573".to_owned() },
            SubjectId::Opaque("dMTlD|1600802906337.16|16008.16".to_owned()),
            SubjectId::JwtId { iss, jti: "B70BA622-9515-4353-A866-823539EECBC8".to_owned() },
            unusable("account"),
            unusable("did"),
            unusable("phone_number"),
            unusable("saml_assertion_id"),
            unusable("ip-addresses"),
        ];
        for (value, expected) in simple().iter().zip(expected) {
            let subject = read(value).expect("good");
            assert_eq!(subject.format(), value["format"]);
            assert_eq!(subject, expected);
            assert_eq!(read(&with(value, &json!({"unknown": {"a": [1]}}))), Ok(subject), "ignored");
        }
        assert_eq!(read(&json!({"format": "uri", "uri": SPIFFE})), Ok(SubjectId::Uri(workload(SPIFFE))));
    }

    #[test]
    fn refuses_each_member_that_is_missing_empty_or_of_another_type_and_names_it() {
        for value in simple() {
            for name in value.as_object().expect("object").keys() {
                let of_another_type = [json!(null), json!(1), json!(true), json!({}), json!("")];
                for wrong in of_another_type.into_iter().chain([json!([]), json!([1]), json!([""])]) {
                    if name == "ip-addresses" && wrong == json!([""]) {
                        continue;
                    }
                    let mut value = value.clone();
                    value[name] = wrong;
                    assert_eq!(fault(&value), format!("sub_id.{name}"), "{value}");
                }
                assert_eq!(fault(&with(&value, &json!({ name: null }))), format!("sub_id.{name}"));
            }
        }
        for value in [json!(null), json!("a@b.example"), json!([]), json!(1)] {
            assert_eq!(fault(&value), "sub_id", "{value}");
        }
        let error = read(&json!({"format": "email"})).expect_err("no address");
        assert_eq!(error.to_string(), "sub_id.email: must be a string of 1 to 320 bytes");
    }

    #[test]
    fn refuses_an_unknown_format_and_another_spelling_of_a_known_one() {
        for format in ["", "Email", "email ", "EMAIL", "iss-sub", "spiffe", "x509", "ip_addresses"] {
            let value =
                json!({"format": format, "email": "a@b.example", "iss": "i", "sub": "s", "uri": WIMSE});
            assert_eq!(fault(&value), "sub_id.format", "{format}");
        }
        assert_eq!(fault(&json!({"subject_type": "email", "email": "a@b.example"})), "sub_id.format");
    }

    #[test]
    fn a_member_is_accepted_at_its_limit_and_refused_one_byte_beyond() {
        for (format, name, text) in [
            ("email", "email", EMAIL),
            ("iss_sub", "iss", ISS),
            ("iss_sub", "sub", SUB),
            ("opaque", "id", SUB),
            ("jwt_id", "iss", ISS),
            ("jwt_id", "jti", JTI),
            ("account", "uri", ISS),
        ] {
            let good = simple().into_iter().find(|value| value["format"] == format).expect("format");
            let of = |bytes: usize| with(&good, &json!({ name: "a".repeat(bytes) }));
            assert!(read(&of(text.bytes_max)).is_ok(), "{format} {name}");
            let error = read(&of(text.bytes_max + 1)).expect_err("too long");
            assert_eq!(error.field, format!("sub_id.{name}"));
            assert_eq!(error.rule, format!("must be a string of 1 to {} bytes", text.bytes_max));
        }
        let start = "spiffe://a/";
        let id = |bytes: usize| {
            let id = format!("{start}{}", "b".repeat(bytes - start.len()));
            read(&json!({"format": "spiffe_id", "spiffe_id": id}))
        };
        assert!(id(limits::WORKLOAD_ID_BYTES_MAX).is_ok());
        assert_eq!(id(limits::WORKLOAD_ID_BYTES_MAX + 1).expect_err("too long").field, "sub_id.spiffe_id");
    }

    #[test]
    fn refuses_every_uri_that_names_no_workload() {
        for uri in [
            "https://trust.example/ns/shop/sa/cart",
            "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "wimse://trust.example",
            "wimse://trust.example/a%2fb",
            "wimse://trust.example/a/../b",
            "WIMSE://trust.example/a",
            "wimse://Trust.example/a",
            " wimse://trust.example/a",
            "wimse://trust.example/a\0",
        ] {
            assert_eq!(fault(&json!({"format": "uri", "uri": uri})), "sub_id.uri", "{uri}");
        }
        for id in [WIMSE, "spiffe://trust.example", "spiffe://trust.example/a/", "SPIFFE://trust.example/a"] {
            assert_eq!(fault(&json!({"format": "spiffe_id", "spiffe_id": id})), "sub_id.spiffe_id", "{id}");
        }
    }

    #[test]
    fn a_complex_subject_has_each_member_where_it_was_sent() {
        let names = ["user", "device", "session", "application", "tenant", "org_unit", "group"];
        for (at, name) in names.iter().enumerate() {
            let value = json!({"format": "complex", *name: {"format": "opaque", "id": name}});
            let Ok(SubjectId::Complex(complex)) = read(&value) else { panic!("{value}") };
            let Complex { user, device, session, application, tenant, org_unit, group } = *complex;
            let members = [user, device, session, application, tenant, org_unit, group];
            for (other, member) in members.into_iter().enumerate() {
                let expected = (other == at).then(|| SubjectId::Opaque((*name).to_owned()));
                assert_eq!(member, expected, "{name} at {other}");
            }
            for wrong in [json!(null), json!("x"), json!([]), json!(1)] {
                assert_eq!(fault(&json!({"format": "complex", *name: wrong})), format!("sub_id.{name}"));
            }
            let value = json!({"format": "complex", *name: {"format": "email"}});
            assert_eq!(fault(&value), format!("sub_id.{name}.email"));
        }
        for empty in [json!({}), json!({"unknown": {"format": "opaque", "id": "x"}}), json!({"users": {}})] {
            let value = with(&empty, &json!({"format": "complex"}));
            assert_eq!(fault(&value), "sub_id", "{value}");
        }
        // A member that is not known is no member, however it looks.
        let value = json!({"format": "complex", "user": {"format": "opaque", "id": "x"}, "robot": 1});
        assert!(read(&value).is_ok());
    }

    #[test]
    fn aliases_are_at_most_sixteen_and_never_empty() {
        let alias = json!({"format": "email", "email": "a@b.example"});
        let of = |count: usize| json!({"format": "aliases", "identifiers": vec![alias.clone(); count]});
        let Ok(SubjectId::Aliases(aliases)) = read(&of(limits::SUBJECT_ALIASES_MAX)) else {
            panic!("refused")
        };
        assert_eq!(aliases.len(), limits::SUBJECT_ALIASES_MAX);
        for count in [0, limits::SUBJECT_ALIASES_MAX + 1] {
            let error = read(&of(count)).expect_err("too few or too many");
            assert_eq!(error.field, "sub_id.identifiers");
            assert!(error.rule.contains(&format!("1 to {} ", limits::SUBJECT_ALIASES_MAX)));
        }
        for wrong in [json!(null), json!({}), json!("x"), alias.clone()] {
            let value = json!({"format": "aliases", "identifiers": wrong});
            assert_eq!(fault(&value), "sub_id.identifiers", "{value}");
        }
        let one_is_bad = json!({"format": "aliases", "identifiers": [alias, {"format": "email"}]});
        assert_eq!(fault(&one_is_bad), "sub_id.identifiers[1].email");
    }

    #[test]
    fn refuses_an_identifier_that_holds_others_inside_another() {
        let complex = json!({"format": "complex", "user": {"format": "opaque", "id": "x"}});
        let aliases = json!({"format": "aliases", "identifiers": [{"format": "opaque", "id": "x"}]});
        for inner in [complex, aliases] {
            assert!(read(&inner).is_ok());
            let value = json!({"format": "aliases", "identifiers": [inner]});
            assert_eq!(fault(&value), "sub_id.identifiers[0].format");
            assert_eq!(fault(&json!({"format": "complex", "user": inner})), "sub_id.user.format");
        }
    }

    #[test]
    fn a_prefix_or_another_spelling_of_a_subject_is_another_subject() {
        for (format, name, text, others) in [
            (
                "spiffe_id",
                "spiffe_id",
                SPIFFE,
                ["spiffe://trust.example/ns/shop/sa/car", "spiffe://trust.example/ns/shop/sa/cart2"],
            ),
            (
                "uri",
                "uri",
                WIMSE,
                ["wimse://trust.example/ns/shop/sa", "wimse://trust.example/ns/shop/sa/Cart"],
            ),
            ("email", "email", "a@b.example", ["a@b.exampl", "A@b.example"]),
            ("opaque", "id", "abc", ["ab", "abc "]),
        ] {
            let subject = read(&json!({"format": format, name: text})).expect("good");
            for other in others {
                assert_ne!(read(&json!({"format": format, name: other})), Ok(subject.clone()), "{other}");
            }
        }
    }

    #[test]
    fn an_address_has_the_digest_that_a_credential_with_it_has() {
        // Neither side folds case, trims or decodes.
        let signer = Signer::es256();
        let issuer = Issuer {
            iss: ISS_URI.to_owned(),
            kind: IssuerKind::Jwt { subject: SubjectMapping::Identifier },
            keys: KeySource::Discovery,
            algorithms: ALGORITHMS_DEFAULT.to_vec(),
            audiences: vec!["https://fabric.example".to_owned()],
            trust_domains: vec!["trust.example".parse().expect("trust domain")],
            max_credential_age: limits::CREDENTIAL_AGE_MAX,
            verified_email: true,
        };
        for email in ["a@b.example", "A@B.example", "a+tag@b.example", " a@b.example", "\u{fc}@b.example"] {
            let claims = json!({
                "iss": ISS_URI, "sub": WIMSE, "aud": "https://fabric.example", "iat": NOW_SECS - 10,
                "exp": NOW_SECS + 600, "email": email, "email_verified": true
            });
            let text = signer.sign(&json!({"alg": "ES256", "kid": "k"}), &claims);
            let (token, cache) = (Compact::parse(&text).expect("compact"), SignatureCache::default());
            let credential = verify_foreign(&token, &issuer, &signer.verifying("k"), &cache, None, now());
            let Ok(SubjectId::Email(read)) = read(&json!({"format": "email", "email": email})) else {
                panic!("{email}");
            };
            let digest = lineage::email(ISS_URI, &read);
            assert!(credential.expect("good").lineage().contains(&digest), "{email}");
        }
    }

    #[test]
    fn simple_subjects_match_if_they_are_identical_and_a_workload_in_either_format() {
        let all = simple();
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                let [a, b] = [one, other].map(|value| read(value).expect("good"));
                let is_usable = !matches!(a, SubjectId::Unusable { .. });
                assert_eq!(a.matches(&b), at == other_at && is_usable, "{one} {other}");
            }
            let [a, mut other] = [one, one].map(Value::clone);
            let name = a.as_object().expect("object").keys().rfind(|name| *name != "format").expect("one");
            let another =
                if name == "ip-addresses" { json!(["192.0.2.1"]) } else { json!(format!("{SPIFFE}x")) };
            other[name] = another;
            assert!(!read(&a).expect("good").matches(&read(&other).expect("good")), "{a} {other}");
        }
        let spiffe = read(&json!({"format": "spiffe_id", "spiffe_id": SPIFFE})).expect("good");
        let uri = read(&json!({"format": "uri", "uri": SPIFFE})).expect("good");
        assert!(spiffe.matches(&uri) && uri.matches(&spiffe));
    }

    #[test]
    fn complex_subjects_match_if_every_member_is_identical_or_missing_on_one_side() {
        let complex = |members: &Value| read(&with(members, &json!({"format": "complex"}))).expect("good");
        let [a, b] = ["a", "b"].map(|id| json!({"format": "opaque", "id": id}));
        let names = ["user", "device", "session", "application", "tenant", "org_unit", "group"];
        for name in names {
            for other in names {
                let one = complex(&json!({ name: a }));
                // The second side says as much, more, or something else.
                assert!(one.matches(&complex(&json!({ other: a }))), "{name} {other}");
                assert_eq!(one.matches(&complex(&json!({ other: b }))), name != other, "{name} {other}");
                let both = complex(&with(&json!({ name: a }), &json!({ other: b })));
                assert_eq!(one.matches(&both), name != other, "{name} {other}");
                assert_eq!(both.matches(&one), name != other, "{name} {other}");
            }
        }
        let simple = read(&a).expect("good");
        assert!(!complex(&json!({"user": a})).matches(&simple), "a simple subject is no complex one");
        assert!(!simple.matches(&complex(&json!({"user": a}))));
    }

    #[test]
    fn aliases_match_what_any_of_them_matches() {
        let [a, b, c] = ["a", "b", "c"].map(|id| json!({"format": "opaque", "id": id}));
        let aliases = |identifiers: &[&Value]| {
            read(&json!({"format": "aliases", "identifiers": identifiers})).expect("good")
        };
        let both = aliases(&[&a, &b]);
        for (other, expected) in [(&a, true), (&b, true), (&c, false)] {
            let other_alone = read(other).expect("good");
            assert_eq!((both.matches(&other_alone), other_alone.matches(&both)), (expected, expected));
            assert_eq!(both.matches(&aliases(&[&c, other])), expected);
        }
        let complex = read(&json!({"format": "complex", "user": a})).expect("good");
        assert!(!both.matches(&complex) && !complex.matches(&both));
    }
}
