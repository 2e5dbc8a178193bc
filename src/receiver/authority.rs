//! Authority of an issuer of signals: maps the subject of a signal to the facts to revoke, or refuses.
//! Pure: no state is read, so subjects that are not yet known are revoked as well.
//!
//! A prefix of a subject is a different subject. Equivalent spellings have one digest
//! ([`crate::token::lineage`]).

use super::{CredentialIssuers, Error};
use crate::id::{TrustDomain, WorkloadId};
use crate::token::lineage::Fact;
use crate::token::subject_id::{Complex, SubjectId};

/// The subjects that an issuer of signals may revoke. Its own `opaque` identifiers always belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// Trust domains over whose workloads it has authority.
    pub trust_domains: Vec<TrustDomain>,
    /// Issuers of credentials for whose subjects, email addresses and tokens it speaks. This fabric may be one of
    /// them: authority over every workload and over every token of ours.
    pub subject_issuers: Vec<String>,
}

/// The issuer of a signal and its receiver.
#[derive(Clone, Copy, Debug)]
pub struct Parties<'a> {
    pub iss: &'a str,
    pub own_issuer: &'a str,
    /// Issuers whose credentials are accepted.
    pub credential_issuers: &'a CredentialIssuers,
}

/// The facts that a subject names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectFacts {
    /// Facts to revoke, without duplicates: the narrowest that the subject names.
    pub revoked: Vec<Fact>,
    /// Facts to block or lift, without duplicates: the same, except that a session does not stand for its account.
    pub blocked: Vec<Fact>,
    /// Paths of fields that name facts of which no credential is accepted, for the log. They are revoked all the
    /// same: an actor named by another issuer, or a token from before a change of the configuration, may derive from
    /// them.
    pub unaccepted: Vec<String>,
    /// Whether the event may be relayed in our name: only if the issuer is authoritative for every part of the
    /// subject. No issuer is for a telephone number; for an email address, only one with `verified_email`.
    pub may_relay: bool,
}

impl SubjectFacts {
    fn push_unique(list: &mut Vec<Fact>, fact: Fact) {
        // Two aliases may be one fact in two spellings.
        if list.iter().all(|other| other.digest() != fact.digest()) {
            list.push(fact);
        }
    }
}

impl Authority {
    /// The facts of `subject`; none for a format from which no credential derives.
    ///
    /// # Errors
    /// [`Error::OutsideAuthority`] with the field that names a foreign subject; [`Error::Invalid`] for a subject of our
    /// own that is not a workload identifier.
    pub fn facts(&self, subject: &SubjectId, parties: Parties<'_>) -> Result<SubjectFacts, Error> {
        let mut facts =
            SubjectFacts { may_relay: self.may_relay(subject, parties), ..SubjectFacts::default() };
        let SubjectId::Complex(complex) = subject else {
            self.collect(subject, "sub_id", parties, &mut facts)?;
            facts.blocked.clone_from(&facts.revoked);
            return Ok(facts);
        };
        // Also for fields without effect: they are relayed with the others.
        for (field, subject) in complex.fields() {
            self.collect(subject, &format!("sub_id.{field}"), parties, &mut SubjectFacts::default())?;
        }
        // A session that is one token is the narrowest fact.
        let session = complex.session.as_ref().filter(|session| matches!(session, SubjectId::JwtId { .. }));
        if let Some(session) = session {
            self.collect(session, "sub_id.session", parties, &mut facts)?;
        }
        let mut account = SubjectFacts::default();
        let principal = principal(complex, session.is_some());
        if let Some((field, subject)) = principal {
            self.collect(subject, &format!("sub_id.{field}"), parties, &mut account)?;
            if field == "application" {
                push_client(subject, parties, &mut account.revoked);
            }
        }
        facts.unaccepted.append(&mut account.unaccepted);
        match (session.is_some(), principal.is_some()) {
            (true, false) => facts.blocked.clone_from(&facts.revoked),
            (true, true) => facts.blocked = account.revoked,
            (false, _) => {
                facts.blocked.clone_from(&account.revoked);
                facts.revoked = account.revoked;
            }
        }
        Ok(facts)
    }

    /// Adds the facts of `subject` to `facts.revoked`.
    fn collect(
        &self,
        subject: &SubjectId,
        path: &str,
        parties: Parties<'_>,
        facts: &mut SubjectFacts,
    ) -> Result<(), Error> {
        let outside = |field: &str| Err(Error::OutsideAuthority { field: format!("{path}.{field}") });
        let SubjectFacts { revoked, unaccepted, .. } = facts;
        let mut push_of = |iss: &str, fact: Fact| {
            if !parties.credential_issuers.contains(iss) {
                unaccepted.push(path.to_owned());
            }
            SubjectFacts::push_unique(revoked, fact);
        };
        match subject {
            SubjectId::SpiffeId(id) | SubjectId::Uri(id) => {
                if !self.trust_domains.contains(id.trust_domain()) {
                    return outside(subject.format());
                }
                SubjectFacts::push_unique(revoked, Fact::workload(id));
            }
            SubjectId::Email(address) => {
                // Our own credentials contain no email address.
                let mut issuers =
                    self.subject_issuers.iter().filter(|iss| *iss != parties.own_issuer).peekable();
                if issuers.peek().is_none() {
                    return outside("email");
                }
                let mut is_verified = false;
                for iss in issuers {
                    is_verified |= parties.credential_issuers.verifies_email(iss);
                    SubjectFacts::push_unique(revoked, Fact::email(iss, address));
                }
                if !is_verified {
                    unaccepted.push(path.to_owned());
                }
            }
            SubjectId::IssSub { iss, .. } | SubjectId::JwtId { iss, .. } if !self.may_speak_for(iss) => {
                return outside("iss");
            }
            SubjectId::IssSub { iss, sub } if iss == parties.own_issuer => {
                let id: WorkloadId = sub.parse().map_err(|_| Error::Invalid {
                    field: format!("{path}.sub"),
                    rule: "must be a workload identifier, like every subject of this fabric",
                })?;
                SubjectFacts::push_unique(revoked, Fact::workload(&id));
            }
            SubjectId::IssSub { iss, sub } => push_of(iss, Fact::subject(iss, sub)),
            SubjectId::JwtId { iss, jti } if iss == parties.own_issuer => {
                push_of(iss, Fact::own_token(iss, jti));
            }
            SubjectId::JwtId { iss, jti } => push_of(iss, Fact::token(iss, jti)),
            SubjectId::Opaque(id) => push_of(parties.iss, Fact::subject(parties.iss, id)),
            SubjectId::Aliases(aliases) => {
                for (at, alias) in aliases.iter().enumerate() {
                    self.collect(alias, &format!("{path}.identifiers[{at}]"), parties, facts)?;
                }
            }
            // `subject_id` accepts a complex subject at the top level only; `facts` has split it there.
            SubjectId::Complex(_) | SubjectId::Unusable { .. } => {}
        }
        Ok(())
    }

    fn may_relay(&self, subject: &SubjectId, parties: Parties<'_>) -> bool {
        match subject {
            SubjectId::Unusable { .. } => false,
            SubjectId::Email(_) => {
                self.subject_issuers.iter().any(|iss| parties.credential_issuers.verifies_email(iss))
            }
            SubjectId::Complex(complex) => {
                complex.fields().iter().all(|(_, part)| self.may_relay(part, parties))
            }
            SubjectId::Aliases(aliases) => aliases.iter().all(|alias| self.may_relay(alias, parties)),
            _ => true,
        }
    }

    fn may_speak_for(&self, iss: &str) -> bool {
        self.subject_issuers.iter().any(|issuer| issuer == iss)
    }
}

/// The field of a complex subject that is the account: the user; else the application; else, without a session, the
/// device. If that field has no usable identifier, no wider field is used instead.
fn principal(complex: &Complex, has_session: bool) -> Option<(&'static str, &SubjectId)> {
    let user = complex.user.as_ref().map(|user| ("user", user));
    let application = complex.application.as_ref().map(|application| ("application", application));
    let device = complex.device.as_ref().filter(|_| !has_session).map(|device| ("device", device));
    user.or(application).or(device)
}

/// An application that is an OAuth client is a client fact in credentials.
fn push_client(application: &SubjectId, parties: Parties<'_>, revoked: &mut Vec<Fact>) {
    let (iss, client_id) = match application {
        SubjectId::IssSub { iss, sub } => (iss.as_str(), sub),
        SubjectId::Opaque(id) => (parties.iss, id),
        _ => return,
    };
    SubjectFacts::push_unique(revoked, Fact::client(iss, client_id));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::token::issuer::{FetchFiles, Issuer, IssuerKind, KeySource};
    use crate::token::lineage;

    const OWN: &str = "https://fabric.example";
    const IDP: &str = "https://idp.example";
    const OTHER: &str = "https://other.example";
    const CART: &str = "wimse://trust.example/ns/shop/sa/cart";

    /// Authority over one trust domain, its own subjects and those of another issuer.
    fn authority() -> Authority {
        Authority {
            trust_domains: vec!["trust.example".parse().expect("trust domain")],
            subject_issuers: vec![IDP.to_owned(), OTHER.to_owned()],
        }
    }

    /// Credentials of both are accepted, but only email addresses of the first.
    fn issuers() -> CredentialIssuers {
        let issuer = |iss: &str, verified_email| Issuer {
            iss: iss.to_owned(),
            kind: IssuerKind::Spiffe,
            keys: KeySource::Discovery,
            fetch_files: FetchFiles::default(),
            algorithms: Vec::new(),
            audiences: Vec::new(),
            trust_domains: Vec::new(),
            max_credential_age: Duration::ZERO,
            verified_email,
        };
        CredentialIssuers::new(OWN, &[issuer(IDP, true), issuer(OTHER, false)])
    }

    fn collected(
        authority: &Authority,
        subject: &Value,
        credential_issuers: &CredentialIssuers,
    ) -> Result<SubjectFacts, Error> {
        let subject = SubjectId::read(subject, "sub_id").expect("well formed");
        authority.facts(&subject, Parties { iss: IDP, own_issuer: OWN, credential_issuers })
    }

    fn facts_of(authority: &Authority, subject: &Value) -> Result<Vec<Fact>, Error> {
        collected(authority, subject, &issuers()).map(|facts| facts.revoked)
    }

    fn facts(subject: &Value) -> Vec<Fact> {
        facts_of(&authority(), subject).expect("within its authority")
    }

    /// The path of the field that is outside the authority.
    fn outside(authority: &Authority, subject: &Value) -> String {
        match facts_of(authority, subject) {
            Err(Error::OutsideAuthority { field }) => field,
            other => panic!("{subject}: {other:?}"),
        }
    }

    fn workload(id: &str) -> Fact {
        Fact::workload(&id.parse().expect("workload"))
    }

    #[test]
    fn each_subject_format_maps_to_its_facts() {
        let spiffe = "spiffe://trust.example/ns/shop/sa/cart";
        for (subject, expected) in [
            (json!({"format": "spiffe_id", "spiffe_id": spiffe}), vec![workload(spiffe)]),
            (json!({"format": "uri", "uri": CART}), vec![workload(CART)]),
            (
                json!({"format": "email", "email": "A@b.example"}),
                vec![Fact::email(IDP, "A@b.example"), Fact::email(OTHER, "A@b.example")],
            ),
            (json!({"format": "iss_sub", "iss": OTHER, "sub": "7"}), vec![Fact::subject(OTHER, "7")]),
            (json!({"format": "opaque", "id": "7"}), vec![Fact::subject(IDP, "7")]),
            (json!({"format": "jwt_id", "iss": OTHER, "jti": "t"}), vec![Fact::token(OTHER, "t")]),
        ] {
            assert_eq!(facts(&subject), expected, "{subject}");
        }
    }

    #[test]
    fn subject_outside_authority_is_refused_by_field() {
        let authority = authority();
        for (subject, field) in [
            (json!({"format": "spiffe_id", "spiffe_id": "spiffe://other.example/a"}), "sub_id.spiffe_id"),
            (json!({"format": "uri", "uri": "wimse://other.example/a"}), "sub_id.uri"),
            // Neither a subdomain nor a parent of the trust domain.
            (json!({"format": "uri", "uri": "wimse://a.trust.example/a"}), "sub_id.uri"),
            (json!({"format": "uri", "uri": "wimse://example/a"}), "sub_id.uri"),
            (json!({"format": "iss_sub", "iss": "https://idp.example/", "sub": "7"}), "sub_id.iss"),
            (json!({"format": "iss_sub", "iss": OWN, "sub": CART}), "sub_id.iss"),
            (json!({"format": "jwt_id", "iss": OWN, "jti": "t"}), "sub_id.iss"),
        ] {
            assert_eq!(outside(&authority, &subject), field, "{subject}");
        }
        let none = Authority::default();
        for (subject, field) in [
            (json!({"format": "email", "email": "a@b.example"}), "sub_id.email"),
            (json!({"format": "uri", "uri": CART}), "sub_id.uri"),
            (json!({"format": "iss_sub", "iss": IDP, "sub": "7"}), "sub_id.iss"),
            (json!({"format": "jwt_id", "iss": IDP, "jti": "t"}), "sub_id.iss"),
        ] {
            assert_eq!(outside(&none, &subject), field, "{subject}");
        }
        assert_eq!(
            facts_of(&none, &json!({"format": "opaque", "id": "7"})).map(|facts| facts.len()).ok(),
            Some(1)
        );
    }

    #[test]
    fn authority_over_own_issuer_covers_workloads_and_tokens() {
        let ours = Authority { trust_domains: Vec::new(), subject_issuers: vec![OWN.to_owned()] };
        let subject = json!({"format": "iss_sub", "iss": OWN, "sub": CART});
        assert_eq!(facts_of(&ours, &subject).ok(), Some(vec![workload(CART)]));
        let token = json!({"format": "jwt_id", "iss": OWN, "jti": "t"});
        assert_eq!(facts_of(&ours, &token).ok(), Some(vec![Fact::token(OWN, "t")]));
        let identity_token = json!({"format": "jwt_id", "iss": OWN, "jti": "f.1"});
        let facts = facts_of(&ours, &identity_token).expect("within its authority");
        assert_eq!(facts[0].digest(), lineage::family(OWN, "f.2"));
        let malformed = facts_of(&ours, &json!({"format": "iss_sub", "iss": OWN, "sub": "cart"}));
        assert!(matches!(malformed, Err(Error::Invalid { field, .. }) if field == "sub_id.sub"));
        // Our tokens contain no email addresses.
        assert_eq!(outside(&ours, &json!({"format": "email", "email": "a@b.example"})), "sub_id.email");
    }

    #[test]
    fn complex_subject_prefers_session_then_user_application_device() {
        let session = json!({"format": "jwt_id", "iss": IDP, "jti": "t"});
        let user = json!({"format": "iss_sub", "iss": IDP, "sub": "7"});
        let application = json!({"format": "uri", "uri": CART});
        let device = json!({"format": "opaque", "id": "device"});
        let complex = |fields: &Value| {
            let mut complex = fields.clone();
            complex["format"] = "complex".into();
            complex
        };
        for (fields, expected) in [
            (json!({"session": session, "user": user, "device": device}), vec![Fact::token(IDP, "t")]),
            (json!({"user": user, "application": application}), vec![Fact::subject(IDP, "7")]),
            (json!({"application": application, "tenant": device}), vec![workload(CART)]),
            // A session that is not a token names no fact.
            (json!({"session": device, "user": user}), vec![Fact::subject(IDP, "7")]),
            (json!({"session": device}), vec![]),
            // CAEP's own device-compliance example: the device is the last resort.
            (json!({"device": device, "tenant": device}), vec![Fact::subject(IDP, "device")]),
            (json!({"tenant": device, "org_unit": device, "group": device}), vec![]),
            // A user with only a telephone number does not widen to the whole application.
            (
                json!({"user": {"format": "phone_number", "phone_number": "+1"}, "application": application}),
                vec![],
            ),
        ] {
            assert_eq!(facts(&complex(&fields)), expected, "{fields}");
        }
        let other = json!({"user": {"format": "iss_sub", "iss": "https://x", "sub": "7"}, "device": device});
        assert_eq!(outside(&authority(), &complex(&other)), "sub_id.user.iss");
        // A field without effect must be within its authority too: it is relayed with the others.
        let foreign = json!({"format": "iss_sub", "iss": "https://x", "sub": "7"});
        for field in ["device", "session", "application", "tenant", "org_unit", "group"] {
            let with_foreign = complex(&json!({"user": user, field: foreign}));
            assert_eq!(outside(&authority(), &with_foreign), format!("sub_id.{field}.iss"));
        }
    }

    /// Attack: an issuer with authority over its own subjects makes us relay, in our name, claims about a telephone
    /// number, an email address or a foreign subject beside its own.
    #[test]
    fn relay_only_if_issuer_is_authoritative_for_every_part() {
        let (user, phone) = (
            json!({"format": "opaque", "id": "7"}),
            json!({"format": "phone_number", "phone_number": "+12065550100"}),
        );
        let email = json!({"format": "email", "email": "a@b.example"});
        let beside = |field: &str, other: &Value| json!({"format": "complex", "user": user, field: other});
        let aliases = |other: &Value| json!({"format": "aliases", "identifiers": [user, other]});
        let no_address = Authority { trust_domains: Vec::new(), subject_issuers: vec![OTHER.to_owned()] };
        for (authority, subject, may_relay) in [
            (authority(), user.clone(), true),
            (authority(), phone.clone(), false),
            (authority(), beside("device", &phone), false),
            (authority(), beside("tenant", &user), true),
            (authority(), aliases(&phone), false),
            (authority(), aliases(&user), true),
            // Only an issuer whose email addresses are trusted may name one.
            (authority(), email.clone(), true),
            (no_address.clone(), email.clone(), false),
            (no_address.clone(), beside("group", &email), false),
            (no_address, aliases(&email), false),
        ] {
            let facts = collected(&authority, &subject, &issuers()).expect("within its authority");
            assert_eq!(facts.may_relay, may_relay, "{subject}");
        }
    }

    #[test]
    fn every_alias_is_collected_and_must_be_within_authority() {
        let good = json!({"format": "aliases", "identifiers": [
            {"format": "uri", "uri": CART}, {"format": "opaque", "id": "7"},
            {"format": "phone_number", "phone_number": "+1"}, {"format": "iss_sub", "iss": IDP, "sub": "7"},
        ]});
        // Two aliases name one fact.
        assert_eq!(facts(&good), [workload(CART), Fact::subject(IDP, "7")]);
        let mut bad = good.clone();
        bad["identifiers"][3]["iss"] = "https://x".into();
        assert_eq!(outside(&authority(), &bad), "sub_id.identifiers[3].iss");
    }

    #[test]
    fn format_without_derived_credentials_names_no_fact() {
        let account = json!({"format": "account", "uri": "acct:a@b.example"});
        assert_eq!(facts(&account), []);
        assert_eq!(facts_of(&Authority::default(), &account).ok(), Some(Vec::new()));
    }

    #[test]
    fn unaccepted_issuer_is_reported_and_revoked_all_the_same() {
        let none = CredentialIssuers::new(OWN, &[]);
        let user = json!({"format": "iss_sub", "iss": OTHER, "sub": "7"});
        for (subject, path) in [
            (json!({"format": "email", "email": "a@b.example"}), "sub_id"),
            (json!({"format": "opaque", "id": "7"}), "sub_id"),
            (user.clone(), "sub_id"),
            (json!({"format": "jwt_id", "iss": IDP, "jti": "t"}), "sub_id"),
            (json!({"format": "complex", "user": user}), "sub_id.user"),
            (json!({"format": "complex", "application": user}), "sub_id.application"),
        ] {
            let facts = collected(&authority(), &subject, &none).expect("within its authority");
            assert_eq!(facts.unaccepted, [path], "{subject}");
            assert!(!facts.revoked.is_empty() && !facts.blocked.is_empty(), "{subject}");
        }
        let doubted = Authority { subject_issuers: vec![OTHER.to_owned()], ..Authority::default() };
        let email = json!({"format": "email", "email": "a@b.example"});
        assert_eq!(collected(&doubted, &email, &issuers()).map(|facts| facts.unaccepted.len()).ok(), Some(1));
    }

    #[test]
    fn session_narrows_revocation_but_not_block() {
        let session = json!({"format": "jwt_id", "iss": IDP, "jti": "t"});
        let user = json!({"format": "iss_sub", "iss": IDP, "sub": "7"});
        let of =
            |subject: Value| collected(&authority(), &subject, &issuers()).expect("within its authority");
        let both = of(json!({"format": "complex", "session": session, "user": user}));
        assert_eq!(
            (both.revoked, both.blocked),
            (vec![Fact::token(IDP, "t")], vec![Fact::subject(IDP, "7")])
        );
        let alone = of(json!({"format": "complex", "session": session, "device": user}));
        assert_eq!(alone.blocked, [Fact::token(IDP, "t")]);
        assert_eq!(alone.revoked, alone.blocked);
    }

    #[test]
    fn application_is_revoked_as_client_too() {
        let application = json!({"format": "iss_sub", "iss": OTHER, "sub": "app"});
        let revoked = facts(&json!({"format": "complex", "application": application}));
        assert_eq!(revoked, [Fact::subject(OTHER, "app"), Fact::client(OTHER, "app")]);
        // A user is not a client.
        let user = facts(&json!({"format": "complex", "user": application}));
        assert_eq!(user, [Fact::subject(OTHER, "app")]);
    }
}
