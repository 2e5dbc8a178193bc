//! Who may revoke whom: from the subject of a signal, and whom its issuer speaks for, to the facts that
//! are revoked. Pure: nothing is looked up, so a subject that nobody knows yet is revoked as well.
//!
//! A prefix of a subject is another subject. Spellings that mean the same have one digest
//! ([`crate::token::lineage`]).

use super::{CredentialIssuers, Error};
use crate::id::{TrustDomain, WorkloadId};
use crate::token::lineage::Fact;
use crate::token::subject_id::{Complex, SubjectId};

/// Whom an issuer of signals speaks for. Its own `opaque` identifiers are always its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// The trust domains over whose workloads it has authority.
    pub trust_domains: Vec<TrustDomain>,
    /// The issuers of credentials for whose subjects, email addresses and tokens it speaks. This fabric may
    /// be one of them: that is authority over every workload, and every token of ours.
    pub subject_issuers: Vec<String>,
}

/// Who says it, to whom.
#[derive(Clone, Copy, Debug)]
pub struct Parties<'a> {
    /// `iss` of the signal.
    pub iss: &'a str,
    /// Our own `iss`.
    pub own_issuer: &'a str,
    /// Whose credentials are accepted here.
    pub known: &'a CredentialIssuers,
}

/// What a subject is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What is revoked, each once: the narrowest that is named.
    pub revoked: Vec<Fact>,
    /// What is blocked and let go, each once: the same, but an account does not end with one session.
    pub blocked: Vec<Fact>,
    /// The members that name what no credential is accepted of here, for the log. They are revoked all the
    /// same: an actor that another issuer names, or a token from before the configuration was changed, may
    /// derive from them.
    pub unheard: Vec<String>,
    /// Whether what is said of the subject may be passed on in our name: each part of it is named as its issuer alone
    /// names it. A telephone number is nobody's, and an address that of whoever gives it, which the address itself
    /// does not say.
    pub is_tellable: bool,
}

impl Facts {
    fn put(list: &mut Vec<Fact>, fact: Fact) {
        // Two aliases may be one fact, also in two spellings.
        if list.iter().all(|known| known.digest() != fact.digest()) {
            list.push(fact);
        }
    }
}

impl Authority {
    /// The facts that `subject` is; none, if it is of a format that no credential derives from.
    ///
    /// # Errors
    /// [`Error::OutsideAuthority`] with the member that names what the issuer does not speak for;
    /// [`Error::Invalid`] for a subject of our own that is no workload identifier.
    pub fn facts(&self, subject: &SubjectId, parties: Parties<'_>) -> Result<Facts, Error> {
        let mut found = Facts { is_tellable: self.is_tellable(subject, parties), ..Facts::default() };
        let SubjectId::Complex(complex) = subject else {
            self.collect(subject, "sub_id", parties, &mut found)?;
            found.blocked.clone_from(&found.revoked);
            return Ok(found);
        };
        // Also of the members that are not acted on: they are passed on with the others.
        for (member, subject) in complex.fields() {
            self.collect(subject, &format!("sub_id.{member}"), parties, &mut Facts::default())?;
        }
        // A session that is one token is the narrowest.
        let session = complex.session.as_ref().filter(|session| matches!(session, SubjectId::JwtId { .. }));
        if let Some(session) = session {
            self.collect(session, "sub_id.session", parties, &mut found)?;
        }
        let mut account = Facts::default();
        let principal = principal(complex, session.is_some());
        if let Some((member, subject)) = principal {
            self.collect(subject, &format!("sub_id.{member}"), parties, &mut account)?;
            if member == "application" {
                put_client(subject, parties, &mut account.revoked);
            }
        }
        found.unheard.append(&mut account.unheard);
        match (session.is_some(), principal.is_some()) {
            (true, false) => found.blocked.clone_from(&found.revoked),
            (true, true) => found.blocked = account.revoked,
            (false, _) => {
                found.blocked.clone_from(&account.revoked);
                found.revoked = account.revoked;
            }
        }
        Ok(found)
    }

    /// Adds to what is revoked.
    fn collect(
        &self,
        subject: &SubjectId,
        path: &str,
        parties: Parties<'_>,
        found: &mut Facts,
    ) -> Result<(), Error> {
        let outside = |member: &str| Err(Error::OutsideAuthority { field: format!("{path}.{member}") });
        let Facts { revoked, unheard, .. } = found;
        let mut put_of = |iss: &str, fact: Fact| {
            if !parties.known.contains(iss) {
                unheard.push(path.to_owned());
            }
            Facts::put(revoked, fact);
        };
        match subject {
            SubjectId::SpiffeId(id) | SubjectId::Uri(id) => {
                if !self.trust_domains.contains(id.trust_domain()) {
                    return outside(subject.format());
                }
                Facts::put(revoked, Fact::workload(id));
            }
            SubjectId::Email(address) => {
                // No credential of our own has an address.
                let mut issuers =
                    self.subject_issuers.iter().filter(|iss| *iss != parties.own_issuer).peekable();
                if issuers.peek().is_none() {
                    return outside("email");
                }
                let mut is_believed = false;
                for iss in issuers {
                    is_believed |= parties.known.believes_email_of(iss);
                    Facts::put(revoked, Fact::email(iss, address));
                }
                if !is_believed {
                    unheard.push(path.to_owned());
                }
            }
            SubjectId::IssSub { iss, .. } | SubjectId::JwtId { iss, .. } if !self.speaks_for(iss) => {
                return outside("iss");
            }
            SubjectId::IssSub { iss, sub } if iss == parties.own_issuer => {
                let id: WorkloadId = sub.parse().map_err(|_| Error::Invalid {
                    field: format!("{path}.sub"),
                    rule: "must be a workload identifier, as every subject of this fabric is",
                })?;
                Facts::put(revoked, Fact::workload(&id));
            }
            SubjectId::IssSub { iss, sub } => put_of(iss, Fact::subject(iss, sub)),
            SubjectId::JwtId { iss, jti } if iss == parties.own_issuer => {
                put_of(iss, Fact::own_token(iss, jti));
            }
            SubjectId::JwtId { iss, jti } => put_of(iss, Fact::token(iss, jti)),
            SubjectId::Opaque(id) => put_of(parties.iss, Fact::subject(parties.iss, id)),
            SubjectId::Aliases(aliases) => {
                for (at, alias) in aliases.iter().enumerate() {
                    self.collect(alias, &format!("{path}.identifiers[{at}]"), parties, found)?;
                }
            }
            // A complex one stands at the top only, and was taken apart there.
            SubjectId::Complex(_) | SubjectId::Unusable { .. } => {}
        }
        Ok(())
    }

    fn is_tellable(&self, subject: &SubjectId, parties: Parties<'_>) -> bool {
        match subject {
            SubjectId::Unusable { .. } => false,
            SubjectId::Email(_) => {
                self.subject_issuers.iter().any(|iss| parties.known.believes_email_of(iss))
            }
            SubjectId::Complex(complex) => {
                complex.fields().iter().all(|(_, member)| self.is_tellable(member, parties))
            }
            SubjectId::Aliases(aliases) => aliases.iter().all(|alias| self.is_tellable(alias, parties)),
            _ => true,
        }
    }

    fn speaks_for(&self, iss: &str) -> bool {
        self.subject_issuers.iter().any(|known| known == iss)
    }
}

/// Which member of a complex subject is the account that is acted on: the user, whatever device or tenant it
/// is in; else the application; else, if no session is acted on, the device. If the member cannot be acted on,
/// no wider one is taken in its place.
fn principal(complex: &Complex, has_session: bool) -> Option<(&'static str, &SubjectId)> {
    let user = complex.user.as_ref().map(|user| ("user", user));
    let application = complex.application.as_ref().map(|application| ("application", application));
    let device = complex.device.as_ref().filter(|_| !has_session).map(|device| ("device", device));
    user.or(application).or(device)
}

/// An application that is an OAuth client stands in credentials as that.
fn put_client(application: &SubjectId, parties: Parties<'_>, revoked: &mut Vec<Fact>) {
    let (iss, client_id) = match application {
        SubjectId::IssSub { iss, sub } => (iss.as_str(), sub),
        SubjectId::Opaque(id) => (parties.iss, id),
        _ => return,
    };
    Facts::put(revoked, Fact::client(iss, client_id));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::token::issuer::{Issuer, IssuerKind, KeySource};
    use crate::token::lineage;

    const OWN: &str = "https://fabric.example";
    const IDP: &str = "https://idp.example";
    const OTHER: &str = "https://other.example";
    const CART: &str = "wimse://trust.example/ns/shop/sa/cart";

    /// Speaks for one trust domain, its own subjects and those of another issuer.
    fn authority() -> Authority {
        Authority {
            trust_domains: vec!["trust.example".parse().expect("trust domain")],
            subject_issuers: vec![IDP.to_owned(), OTHER.to_owned()],
        }
    }

    /// Credentials of both are accepted, but only the addresses of the first are believed.
    fn known() -> CredentialIssuers {
        let issuer = |iss: &str, verified_email| Issuer {
            iss: iss.to_owned(),
            kind: IssuerKind::Spiffe,
            keys: KeySource::Discovery,
            algorithms: Vec::new(),
            audiences: Vec::new(),
            trust_domains: Vec::new(),
            max_credential_age: Duration::ZERO,
            verified_email,
        };
        CredentialIssuers::new(OWN, &[issuer(IDP, true), issuer(OTHER, false)])
    }

    fn found(authority: &Authority, subject: &Value, known: &CredentialIssuers) -> Result<Facts, Error> {
        let subject = SubjectId::read(subject, "sub_id").expect("well formed");
        authority.facts(&subject, Parties { iss: IDP, own_issuer: OWN, known })
    }

    fn facts_of(authority: &Authority, subject: &Value) -> Result<Vec<Fact>, Error> {
        found(authority, subject, &known()).map(|found| found.revoked)
    }

    fn facts(subject: &Value) -> Vec<Fact> {
        facts_of(&authority(), subject).expect("within its authority")
    }

    /// Which member names what the issuer does not speak for.
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
    fn each_format_becomes_what_credentials_derive_from() {
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
    fn a_subject_outside_its_authority_is_refused_by_the_member_that_names_it() {
        let authority = authority();
        for (subject, field) in [
            (json!({"format": "spiffe_id", "spiffe_id": "spiffe://other.example/a"}), "sub_id.spiffe_id"),
            (json!({"format": "uri", "uri": "wimse://other.example/a"}), "sub_id.uri"),
            // Neither above nor below the trust domain it speaks for.
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
    fn who_speaks_for_this_fabric_names_its_subjects_as_workloads() {
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
        // Its tokens have no addresses, so this is no authority over any.
        assert_eq!(outside(&ours, &json!({"format": "email", "email": "a@b.example"})), "sub_id.email");
    }

    #[test]
    fn of_a_complex_subject_the_session_is_taken_then_the_user_the_application_and_the_device() {
        let session = json!({"format": "jwt_id", "iss": IDP, "jti": "t"});
        let user = json!({"format": "iss_sub", "iss": IDP, "sub": "7"});
        let application = json!({"format": "uri", "uri": CART});
        let device = json!({"format": "opaque", "id": "device"});
        let complex = |members: &Value| {
            let mut complex = members.clone();
            complex["format"] = "complex".into();
            complex
        };
        for (members, expected) in [
            (json!({"session": session, "user": user, "device": device}), vec![Fact::token(IDP, "t")]),
            (json!({"user": user, "application": application}), vec![Fact::subject(IDP, "7")]),
            (json!({"application": application, "tenant": device}), vec![workload(CART)]),
            // A session that is no token names nothing.
            (json!({"session": device, "user": user}), vec![Fact::subject(IDP, "7")]),
            (json!({"session": device}), vec![]),
            // Of CAEP's own device-compliance example: the last resort.
            (json!({"device": device, "tenant": device}), vec![Fact::subject(IDP, "device")]),
            (json!({"tenant": device, "org_unit": device, "group": device}), vec![]),
            // A user that is known by a telephone number only is not the whole application.
            (
                json!({"user": {"format": "phone_number", "phone_number": "+1"}, "application": application}),
                vec![],
            ),
        ] {
            assert_eq!(facts(&complex(&members)), expected, "{members}");
        }
        let other = json!({"user": {"format": "iss_sub", "iss": "https://x", "sub": "7"}, "device": device});
        assert_eq!(outside(&authority(), &complex(&other)), "sub_id.user.iss");
        // Nor may it name another's beside what it may act on: that is passed on with it.
        let foreign = json!({"format": "iss_sub", "iss": "https://x", "sub": "7"});
        for member in ["device", "session", "application", "tenant", "org_unit", "group"] {
            let with_foreign = complex(&json!({"user": user, member: foreign}));
            assert_eq!(outside(&authority(), &with_foreign), format!("sub_id.{member}.iss"));
        }
    }

    /// Attack: whoever may say something of its own subjects has us say in our name, to all who trust us, what it likes
    /// of a telephone number, of an address, or of somebody beside whom it names.
    #[test]
    fn what_is_said_is_passed_on_only_of_whom_its_issuer_alone_names() {
        let (user, phone) = (
            json!({"format": "opaque", "id": "7"}),
            json!({"format": "phone_number", "phone_number": "+12065550100"}),
        );
        let email = json!({"format": "email", "email": "a@b.example"});
        let beside = |member: &str, other: &Value| json!({"format": "complex", "user": user, member: other});
        let aliases = |other: &Value| json!({"format": "aliases", "identifiers": [user, other]});
        let no_address = Authority { trust_domains: Vec::new(), subject_issuers: vec![OTHER.to_owned()] };
        for (authority, subject, is_tellable) in [
            (authority(), user.clone(), true),
            (authority(), phone.clone(), false),
            (authority(), beside("device", &phone), false),
            (authority(), beside("tenant", &user), true),
            (authority(), aliases(&phone), false),
            (authority(), aliases(&user), true),
            // Only an issuer whose addresses are believed says whose they are.
            (authority(), email.clone(), true),
            (no_address.clone(), email.clone(), false),
            (no_address.clone(), beside("group", &email), false),
            (no_address, aliases(&email), false),
        ] {
            let found = found(&authority, &subject, &known()).expect("within its authority");
            assert_eq!(found.is_tellable, is_tellable, "{subject}");
        }
    }

    #[test]
    fn of_aliases_each_is_taken_and_each_must_be_within_its_authority() {
        let good = json!({"format": "aliases", "identifiers": [
            {"format": "uri", "uri": CART}, {"format": "opaque", "id": "7"},
            {"format": "phone_number", "phone_number": "+1"}, {"format": "iss_sub", "iss": IDP, "sub": "7"},
        ]});
        // Two of them are one.
        assert_eq!(facts(&good), [workload(CART), Fact::subject(IDP, "7")]);
        let mut bad = good.clone();
        bad["identifiers"][3]["iss"] = "https://x".into();
        assert_eq!(outside(&authority(), &bad), "sub_id.identifiers[3].iss");
    }

    #[test]
    fn a_format_that_no_credential_derives_from_names_nothing() {
        let account = json!({"format": "account", "uri": "acct:a@b.example"});
        assert_eq!(facts(&account), []);
        assert_eq!(facts_of(&Authority::default(), &account).ok(), Some(Vec::new()));
    }

    #[test]
    fn what_no_accepted_credential_is_of_is_named_and_revoked_all_the_same() {
        let nobody = CredentialIssuers::new(OWN, &[]);
        let user = json!({"format": "iss_sub", "iss": OTHER, "sub": "7"});
        for (subject, path) in [
            (json!({"format": "email", "email": "a@b.example"}), "sub_id"),
            (json!({"format": "opaque", "id": "7"}), "sub_id"),
            (user.clone(), "sub_id"),
            (json!({"format": "jwt_id", "iss": IDP, "jti": "t"}), "sub_id"),
            (json!({"format": "complex", "user": user}), "sub_id.user"),
            (json!({"format": "complex", "application": user}), "sub_id.application"),
        ] {
            let found = found(&authority(), &subject, &nobody).expect("within its authority");
            assert_eq!(found.unheard, [path], "{subject}");
            assert!(!found.revoked.is_empty() && !found.blocked.is_empty(), "{subject}");
        }
        let doubted = Authority { subject_issuers: vec![OTHER.to_owned()], ..Authority::default() };
        let email = json!({"format": "email", "email": "a@b.example"});
        assert_eq!(found(&doubted, &email, &known()).map(|found| found.unheard.len()).ok(), Some(1));
    }

    #[test]
    fn a_session_narrows_what_is_revoked_and_not_what_is_blocked() {
        let session = json!({"format": "jwt_id", "iss": IDP, "jti": "t"});
        let user = json!({"format": "iss_sub", "iss": IDP, "sub": "7"});
        let of = |subject: Value| found(&authority(), &subject, &known()).expect("within its authority");
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
    fn an_application_is_revoked_as_the_client_that_it_is_too() {
        let application = json!({"format": "iss_sub", "iss": OTHER, "sub": "app"});
        let found = facts(&json!({"format": "complex", "application": application}));
        assert_eq!(found, [Fact::subject(OTHER, "app"), Fact::client(OTHER, "app")]);
        // A user is no client.
        let user = facts(&json!({"format": "complex", "user": application}));
        assert_eq!(user, [Fact::subject(OTHER, "app")]);
    }
}
