//! Subject identifiers of security events (RFC 9493, SSF 1.0, specification "`sub_id` fields").
//!
//! Only the form is checked; authority over the subject is the receiver's. Every text is retained byte for byte, email
//! addresses too; two spellings of one subject have the same digest (`lineage`).

use serde_json::{Map, Value};

use crate::id::WorkloadId;
use crate::{limits, text};

/// The subject of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectId {
    /// `spiffe_id` (specification).
    SpiffeId(WorkloadId),
    /// `uri` (RFC 9493 §3.2.7) of a workload.
    Uri(WorkloadId),
    /// `email` (RFC 9493 §3.2.2), as sent.
    Email(String),
    /// `iss_sub` (RFC 9493 §3.2.3).
    IssSub {
        iss: String,
        /// `sub` within the issuer.
        sub: String,
    },
    /// `opaque` (RFC 9493 §3.2.4).
    Opaque(String),
    /// `jwt_id` (SSF 1.0 §3.5.1): one token.
    JwtId { iss: String, jti: String },
    /// `complex` (SSF 1.0 §3.3).
    Complex(Box<Complex>),
    /// `aliases` (RFC 9493 §3.2.8): 1 to `SUBJECT_ALIASES_MAX`, none of them `complex` or `aliases`.
    Aliases(Vec<SubjectId>),
    /// A known, well-formed format that names no fact of our credentials.
    Unusable {
        /// `account`, `did`, `phone_number`, `ip-addresses` or `saml_assertion_id`.
        format: String,
    },
}

/// The fields of a complex subject: at least one, none of them `complex` or `aliases`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Complex {
    pub user: Option<SubjectId>,
    pub device: Option<SubjectId>,
    pub session: Option<SubjectId>,
    pub application: Option<SubjectId>,
    pub tenant: Option<SubjectId>,
    pub org_unit: Option<SubjectId>,
    pub group: Option<SubjectId>,
}

/// The first field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {rule}")]
pub struct Error {
    /// Path of the field, for example `sub_id.user.email`.
    pub field: String,
    pub rule: &'static str,
}

impl SubjectId {
    /// Reads the identifier at `path`. Unknown fields are ignored; their number is bounded by the document.
    ///
    /// # Errors
    /// [`Error`]: the format is unknown, or a field of it is absent, of a wrong type, empty, too long or malformed.
    pub fn read(value: &Value, path: &str) -> Result<Self, Error> {
        let fields = JsonFields::of(value, path)?;
        match fields.format()? {
            "complex" => fields.complex(),
            "aliases" => fields.aliases(),
            format => fields.simple(format),
        }
    }

    /// `format`, as sent.
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

    /// Whether both name one subject (SSF 1.0 §8.1.3.1): simple subjects if "exactly identical", complex ones if every
    /// field is identical or missing on one side. Both formats of a workload match each other, aliases match if any of
    /// them does, and unusable formats never match.
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
    /// The present fields with their names.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, &SubjectId)> {
        let fields = COMPLEX.into_iter().zip(self.all());
        fields.filter_map(|(name, field)| Some((name, field?))).collect()
    }

    /// All fields, in the order of [`COMPLEX`].
    fn all(&self) -> [Option<&SubjectId>; 7] {
        let Self { user, device, session, application, tenant, org_unit, group } = self;
        [user, device, session, application, tenant, org_unit, group].map(Option::as_ref)
    }

    fn matches(&self, other: &Self) -> bool {
        self.all().into_iter().zip(other.all()).all(|fields| match fields {
            (Some(one), Some(other)) => one.matches(other),
            _ => true,
        })
    }
}

/// Length limit of a text, and its rule in words.
struct Text {
    bytes_max: usize,
    rule: &'static str,
}

/// `iss`, and any other URI.
const ISS: Text = Text { bytes_max: limits::URI_BYTES_MAX, rule: "must be a string of 1 to 2048 bytes" };
/// `sub` of a credential.
const SUB: Text =
    Text { bytes_max: limits::WORKLOAD_ID_BYTES_MAX, rule: "must be a string of 1 to 2048 bytes" };
const EMAIL: Text = Text { bytes_max: limits::EMAIL_BYTES_MAX, rule: "must be a string of 1 to 320 bytes" };
const JTI: Text = Text { bytes_max: limits::OPAQUE_BYTES_MAX, rule: "must be a string of 1 to 256 bytes" };

/// Formats without effect here, with their required fields.
const UNUSABLE: [(&str, &[&str]); 4] = [
    ("account", &["uri"]),
    ("did", &["url"]),
    ("phone_number", &["phone_number"]),
    ("saml_assertion_id", &["issuer", "assertion_id"]),
];

/// The fields of one identifier, and its path.
struct JsonFields<'v> {
    fields: &'v Map<String, Value>,
    path: &'v str,
}

impl<'v> JsonFields<'v> {
    fn of(value: &'v Value, path: &'v str) -> Result<Self, Error> {
        let fields = value.as_object();
        let fields = fields.ok_or_else(|| Error { field: path.to_owned(), rule: "must be an object" })?;
        Ok(Self { fields, path })
    }

    fn broken(&self, name: &str, rule: &'static str) -> Error {
        Error { field: format!("{}.{name}", self.path), rule }
    }

    fn format(&self) -> Result<&'v str, Error> {
        let format = self.fields.get("format").and_then(Value::as_str);
        format.ok_or_else(|| self.broken("format", "must be a string"))
    }

    fn text(&self, name: &str, text: &Text) -> Result<String, Error> {
        let found = self.fields.get(name).and_then(Value::as_str);
        let fitting = found.filter(|found| text::fits(found, text.bytes_max));
        fitting.map(ToOwned::to_owned).ok_or_else(|| self.broken(name, text.rule))
    }

    fn workload(&self, name: &str, scheme: &str, rule: &'static str) -> Result<WorkloadId, Error> {
        let text = self.fields.get(name).and_then(Value::as_str).filter(|text| text.starts_with(scheme));
        text.and_then(|text| text.parse().ok()).ok_or_else(|| self.broken(name, rule))
    }

    /// An identifier that contains no other.
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
            // RFC 9493 §3.2.8: aliases "MUST NOT be nested"; SSF 1.0 §3.3: fields of complex subjects are simple subjects.
            "complex" | "aliases" => Err(self.broken("format", "must not be complex or aliases here")),
            format => self.unusable(format),
        }
    }

    fn unusable(&self, format: &str) -> Result<SubjectId, Error> {
        let unusable = || SubjectId::Unusable { format: format.to_owned() };
        if format == "ip-addresses" {
            let addresses = self.fields.get(format).and_then(Value::as_array);
            let are_good =
                addresses.is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string));
            return if are_good {
                Ok(unusable())
            } else {
                Err(self.broken(format, "must be an array of strings, at least one"))
            };
        }
        let Some((_, names)) = UNUSABLE.iter().find(|(known, _)| *known == format) else {
            return Err(self.broken("format", "unknown subject identifier format"));
        };
        names.iter().try_for_each(|name| self.text(name, &ISS).map(drop))?;
        Ok(unusable())
    }

    fn complex(&self) -> Result<SubjectId, Error> {
        let mut is_empty = true;
        let mut field = |name: &str| {
            let Some(value) = self.fields.get(name) else { return Ok(None) };
            is_empty = false;
            inner(value, &format!("{}.{name}", self.path)).map(Some)
        };
        let complex = Complex {
            user: field("user")?,
            device: field("device")?,
            session: field("session")?,
            application: field("application")?,
            tenant: field("tenant")?,
            org_unit: field("org_unit")?,
            group: field("group")?,
        };
        if is_empty {
            let rule = "must have user, device, session, application, tenant, org_unit or group";
            return Err(Error { field: self.path.to_owned(), rule });
        }
        Ok(SubjectId::Complex(Box::new(complex)))
    }

    fn aliases(&self) -> Result<SubjectId, Error> {
        let aliases = self.fields.get("identifiers").and_then(Value::as_array);
        let aliases = aliases
            .filter(|aliases| (1..=limits::SUBJECT_ALIASES_MAX).contains(&aliases.len()))
            .ok_or_else(|| self.broken("identifiers", "must be an array of 1 to 16 subject identifiers"))?;
        let alias = |(at, value)| inner(value, &format!("{}.identifiers[{at}]", self.path));
        let aliases: Result<Vec<SubjectId>, Error> = aliases.iter().enumerate().map(alias).collect();
        aliases.map(SubjectId::Aliases)
    }
}

/// An identifier inside another, which may not contain one itself.
fn inner(value: &Value, path: &str) -> Result<SubjectId, Error> {
    let fields = JsonFields::of(value, path)?;
    fields.simple(fields.format()?)
}

/// The fields of each simple format, besides `format`.
const FIELDS: [(&str, &[&str]); 10] = [
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

/// The fields of a complex subject.
const COMPLEX: [&str; 7] = ["user", "device", "session", "application", "tenant", "org_unit", "group"];

/// The form in which an identifier is relayed, after [`SubjectId::read`] accepted it: only the fields of its format;
/// `spiffe_id`, which is not registered, as `uri`; and an `opaque` one of the issuer `issuer`, which has no meaning
/// elsewhere, as `iss_sub`.
#[must_use]
pub fn relayed(value: &Value, issuer: Option<&str>) -> Value {
    let field = |name: &str| value.get(name).cloned().unwrap_or_default();
    let format = value.get("format").and_then(Value::as_str).unwrap_or_default();
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    put("format", format.into());
    match (format, issuer) {
        ("spiffe_id", _) => {
            put("format", "uri".into());
            put("uri", field("spiffe_id"));
        }
        ("opaque", Some(iss)) => {
            put("format", "iss_sub".into());
            put("iss", iss.into());
            put("sub", field("id"));
        }
        ("complex", _) => {
            for name in COMPLEX {
                if let Some(inner) = value.get(name) {
                    put(name, relayed(inner, issuer));
                }
            }
        }
        ("aliases", _) => {
            let identifiers = value.get("identifiers").and_then(Value::as_array);
            let identifiers = identifiers.into_iter().flatten();
            put("identifiers", identifiers.map(|inner| relayed(inner, issuer)).collect());
        }
        _ => {
            let known = FIELDS.iter().find(|(known, _)| *known == format);
            for name in known.iter().flat_map(|(_, names)| names.iter()) {
                put(name, field(name));
            }
        }
    }
    Value::Object(fields)
}

/// Display text of an identifier that [`SubjectId::read`] accepted: the first name, if it has several.
#[must_use]
pub fn text(value: &Value) -> String {
    let first = match value.get("format").and_then(Value::as_str) {
        Some("complex") => COMPLEX.iter().find_map(|name| value.get(*name)),
        Some("aliases") => value.get("identifiers").and_then(|identifiers| identifiers.get(0)),
        _ => None,
    };
    let texts = ["spiffe_id", "uri", "email", "sub", "id", "jti", "url", "phone_number", "assertion_id"];
    match first {
        // An alias contains no other identifier.
        Some(first) => text(first),
        None => texts.iter().find_map(|name| value.get(*name)?.as_str()).unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::token::foreign::verify_foreign;
    use crate::token::issuer::{
        ALGORITHMS_DEFAULT, FetchFiles, Issuer, IssuerKind, KeySource, SubjectMapping,
    };
    use crate::token::jws::Compact;
    use crate::token::lineage;
    use crate::token::signature_cache::SignatureCache;
    use crate::token::testing::{NOW_SECS, Signer, now, with};

    const ISS_URI: &str = "https://issuer.example";
    const WIMSE: &str = "wimse://trust.example/ns/shop/sa/cart";
    const SPIFFE: &str = "spiffe://trust.example/ns/shop/sa/cart";

    /// The relayed form of an identifier of this issuer; both must be readable.
    fn relay(value: &Value) -> Value {
        let once = relayed(value, Some(ISS_URI));
        for value in [value, &once] {
            assert!(SubjectId::read(value, "sub_id").is_ok(), "{value}");
        }
        let twice = relayed(&once, Some("https://other.example"));
        assert_eq!(twice, once, "relaying again changes nothing");
        once
    }

    #[test]
    fn relayed_subject_has_only_the_fields_of_its_format() {
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
            assert_eq!(relay(&value), expected);
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
            assert_eq!(relay(&same), same);
            assert_eq!(relay(&with(&same, &json!({"more": "x".repeat(100_000)}))), same);
        }
        // An opaque subject of a receiver of ours has no issuer.
        assert_eq!(relayed(&opaque, None), opaque);
    }

    #[test]
    fn subject_has_one_display_text() {
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
            // Not an identifier.
            (json!([]), ""),
            (json!({"format": "aliases", "identifiers": []}), ""),
        ] {
            assert_eq!(text(&value), expected, "{value}");
        }
    }

    fn read(value: &Value) -> Result<SubjectId, Error> {
        SubjectId::read(value, "sub_id")
    }

    /// The field that a refusal names.
    fn fault(value: &Value) -> String {
        read(value).expect_err(&value.to_string()).field
    }

    /// One valid identifier of each simple format.
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
    fn every_format_is_read() {
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
    fn missing_empty_or_mistyped_field_is_refused_by_name() {
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
    fn unknown_or_misspelled_format_is_refused() {
        for format in ["", "Email", "email ", "EMAIL", "iss-sub", "spiffe", "x509", "ip_addresses"] {
            let value =
                json!({"format": format, "email": "a@b.example", "iss": "i", "sub": "s", "uri": WIMSE});
            assert_eq!(fault(&value), "sub_id.format", "{format}");
        }
        assert_eq!(fault(&json!({"subject_type": "email", "email": "a@b.example"})), "sub_id.format");
    }

    #[test]
    fn field_is_accepted_at_its_limit_and_refused_beyond() {
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
    fn uri_that_names_no_workload_is_refused() {
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
    fn complex_subject_keeps_each_field_in_its_place() {
        let names = ["user", "device", "session", "application", "tenant", "org_unit", "group"];
        for (at, name) in names.iter().enumerate() {
            let value = json!({"format": "complex", *name: {"format": "opaque", "id": name}});
            let Ok(SubjectId::Complex(complex)) = read(&value) else { panic!("{value}") };
            let Complex { user, device, session, application, tenant, org_unit, group } = *complex;
            let fields = [user, device, session, application, tenant, org_unit, group];
            for (other, field) in fields.into_iter().enumerate() {
                let expected = (other == at).then(|| SubjectId::Opaque((*name).to_owned()));
                assert_eq!(field, expected, "{name} at {other}");
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
        // An unknown field is ignored, whatever its value.
        let value = json!({"format": "complex", "user": {"format": "opaque", "id": "x"}, "robot": 1});
        assert!(read(&value).is_ok());
    }

    #[test]
    fn aliases_are_one_to_sixteen() {
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
    fn nested_complex_or_aliases_is_refused() {
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
    fn prefix_or_other_spelling_is_another_subject() {
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
    fn email_has_the_digest_of_a_credential_with_it() {
        // Neither side folds case, trims or decodes.
        let signer = Signer::es256();
        let issuer = Issuer {
            iss: ISS_URI.to_owned(),
            kind: IssuerKind::Jwt { subject: SubjectMapping::Identifier },
            keys: KeySource::Discovery,
            fetch_files: FetchFiles::default(),
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
            assert!(credential.expect("good").lineage.contains(&digest), "{email}");
        }
    }

    #[test]
    fn simple_subjects_match_if_identical_workloads_in_any_format() {
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
    fn complex_subjects_match_if_fields_agree_or_are_missing() {
        let complex = |fields: &Value| read(&with(fields, &json!({"format": "complex"}))).expect("good");
        let [a, b] = ["a", "b"].map(|id| json!({"format": "opaque", "id": id}));
        let names = ["user", "device", "session", "application", "tenant", "org_unit", "group"];
        for name in names {
            for other in names {
                let one = complex(&json!({ name: a }));
                // The second side has the same, an additional or a different field.
                assert!(one.matches(&complex(&json!({ other: a }))), "{name} {other}");
                assert_eq!(one.matches(&complex(&json!({ other: b }))), name != other, "{name} {other}");
                let both = complex(&with(&json!({ name: a }), &json!({ other: b })));
                assert_eq!(one.matches(&both), name != other, "{name} {other}");
                assert_eq!(both.matches(&one), name != other, "{name} {other}");
            }
        }
        let simple = read(&a).expect("good");
        assert!(
            !complex(&json!({"user": a})).matches(&simple),
            "a simple subject never matches a complex one"
        );
        assert!(!simple.matches(&complex(&json!({"user": a}))));
    }

    #[test]
    fn aliases_match_if_any_of_them_matches() {
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
