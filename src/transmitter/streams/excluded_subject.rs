//! Excluded subjects of a stream, in the canonical form in which they are stored and compared.

use serde_json::{Map, Value, json};

use super::Error;
use crate::token::subject_id::{self, SubjectId};

const FIELD: &str = "subject";

/// Parses a subject and returns it with exactly the fields of its format. Refuses unknown fields, and formats by which
/// subjects cannot be compared.
pub(super) fn parse(value: &Value) -> Result<Value, Error> {
    let subject = SubjectId::read(value, FIELD)?;
    let canonical = canonical(&subject).ok_or_else(|| {
        Error::invalid(format!("{FIELD}.format"), "must be a format by which this fabric compares subjects")
    })?;
    match unknown_field(value, &canonical, FIELD) {
        Some(field) => Err(Error::invalid(field, "is not a field of this format")),
        None => Ok(canonical),
    }
}

/// Refuses to add back a subject that stays excluded, because another removed subject matches it (as aliases and
/// complex subjects do). Aliases or a complex subject that were removed themselves can always be added back: their
/// parts may have been removed separately.
pub(super) fn check_not_excluded(subject: &Value, removed: &[SubjectId]) -> Result<(), Error> {
    let subject = SubjectId::read(&subject_id::relayed(subject, None), FIELD)?;
    let has_parts = matches!(subject, SubjectId::Aliases(_) | SubjectId::Complex(_));
    let can_be_added = has_parts && removed.contains(&subject);
    if !can_be_added && removed.iter().any(|other| *other != subject && other.matches(&subject)) {
        let rule = "another subject that was removed matches it: add that one first";
        return Err(Error::invalid(FIELD, rule));
    }
    Ok(())
}

/// `None` if the subject, or a part of it, has a format without comparable identifiers.
fn canonical(subject: &SubjectId) -> Option<Value> {
    let format = subject.format();
    Some(match subject {
        SubjectId::SpiffeId(id) => json!({"format": format, "spiffe_id": id.as_str()}),
        SubjectId::Uri(id) => json!({"format": format, "uri": id.as_str()}),
        SubjectId::Email(email) => json!({"format": format, "email": email}),
        SubjectId::IssSub { iss, sub } => json!({"format": format, "iss": iss, "sub": sub}),
        SubjectId::Opaque(id) => json!({"format": format, "id": id}),
        SubjectId::JwtId { iss, jti } => json!({"format": format, "iss": iss, "jti": jti}),
        SubjectId::Aliases(identifiers) => {
            let identifiers: Option<Vec<Value>> = identifiers.iter().map(canonical).collect();
            json!({"format": format, "identifiers": identifiers?})
        }
        SubjectId::Complex(complex) => {
            let parts = [
                ("user", &complex.user),
                ("device", &complex.device),
                ("session", &complex.session),
                ("application", &complex.application),
                ("tenant", &complex.tenant),
                ("org_unit", &complex.org_unit),
                ("group", &complex.group),
            ];
            let mut value = Map::new();
            value.insert("format".to_owned(), format.into());
            for (name, part) in parts {
                if let Some(part) = part {
                    value.insert(name.to_owned(), canonical(part)?);
                }
            }
            Value::Object(value)
        }
        SubjectId::Unusable { .. } => return None,
    })
}

/// Path of the first field of `value` that `known` does not have.
fn unknown_field(value: &Value, known: &Value, path: &str) -> Option<String> {
    match (value, known) {
        (Value::Object(fields), Value::Object(known)) => fields.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match known.get(name) {
                Some(known) => unknown_field(value, known, &path),
                None => Some(path),
            }
        }),
        (Value::Array(values), Value::Array(known)) => values
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(at, (value, known))| unknown_field(value, known, &format!("{path}[{at}]"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIFFE: &str = "spiffe://trust.example/ns/shop/sa/cart";

    #[track_caller]
    fn refused(value: &Value, text: &str) {
        let error = parse(value).expect_err(text).to_string();
        assert!(error.contains(text), "{value}: {error}");
    }

    #[test]
    fn comparable_subject_is_stored_unchanged() {
        let email = json!({"format": "email", "email": "A@b.example"});
        for subject in [
            email.clone(),
            json!({"format": "spiffe_id", "spiffe_id": SPIFFE}),
            json!({"format": "uri", "uri": SPIFFE}),
            json!({"format": "iss_sub", "iss": "https://i.example", "sub": "s"}),
            json!({"format": "opaque", "id": "x"}),
            json!({"format": "jwt_id", "iss": "https://i.example", "jti": "j"}),
            json!({"format": "aliases", "identifiers": [email, {"format": "opaque", "id": "x"}]}),
            json!({
                "format": "complex", "user": email, "device": email, "session": email, "application": email,
                "tenant": email, "org_unit": email, "group": email,
            }),
        ] {
            assert_eq!(parse(&subject).expect("read"), subject);
        }
    }

    #[test]
    fn format_without_comparison_is_refused_at_any_depth() {
        let phone = json!({"format": "phone_number", "phone_number": "+12065550100"});
        for subject in [
            phone.clone(),
            json!({"format": "aliases", "identifiers": [{"format": "opaque", "id": "x"}, phone]}),
            json!({"format": "complex", "user": {"format": "opaque", "id": "x"}, "device": phone}),
        ] {
            refused(&subject, "subject.format: must be a format by which");
        }
    }

    #[test]
    fn subject_excluded_by_another_cannot_be_added_back() {
        let read = |value: &Value| SubjectId::read(value, FIELD).expect("a subject");
        let (a, b) = (json!({"format": "opaque", "id": "a"}), json!({"format": "opaque", "id": "b"}));
        let aliases = json!({"format": "aliases", "identifiers": [a, b]});
        let user = json!({"format": "complex", "user": a});
        let user_of_tenant = json!({"format": "complex", "user": a, "tenant": b});
        let uri = json!({"format": "uri", "uri": SPIFFE});
        let spiffe_id = json!({"format": "spiffe_id", "spiffe_id": SPIFFE});
        for (added, removed, is_allowed) in [
            (&a, vec![&a, &b], true),
            (&a, vec![&a, &aliases], false),
            (&aliases, vec![&aliases], true),
            (&aliases, vec![&aliases, &b], true),
            (&aliases, vec![&b], false),
            (&user_of_tenant, vec![&user], false),
            (&user_of_tenant, vec![&user_of_tenant], true),
            // Stored as `uri`, so that both are one subject.
            (&spiffe_id, vec![&uri], true),
            (&b, vec![], true),
        ] {
            let removed: Vec<_> = removed.into_iter().map(read).collect();
            assert_eq!(check_not_excluded(added, &removed).is_ok(), is_allowed, "{added}");
        }
        let error = check_not_excluded(&b, &[read(&aliases)]).expect_err("kept out").to_string();
        assert_eq!(error, "subject: another subject that was removed matches it: add that one first");
    }

    #[test]
    fn unknown_field_of_a_format_is_named() {
        let with_more = json!({"format": "email", "email": "a@b.example", "tenant": "t"});
        refused(&with_more, "subject.tenant: is not a field");
        refused(&json!({"format": "complex", "user": with_more}), "subject.user.tenant: is not a field");
        refused(
            &json!({"format": "aliases", "identifiers": [{"format": "opaque", "id": "x"}, with_more]}),
            "subject.identifiers[1].tenant: is not a field",
        );
        refused(&json!({"format": "email"}), "subject.email: must be");
        refused(&json!("a@b.example"), "subject: must be an object");
    }
}
