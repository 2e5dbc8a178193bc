//! Whom a stream is not told about: a subject in the one form in which it is kept and compared.

use serde_json::{Map, Value, json};

use super::Error;
use crate::token::subject_id::SubjectId;

const FIELD: &str = "subject";

/// Reads a subject, and answers it with the members of its format and no others.
///
/// # Errors
/// [`Error::Invalid`]: it is not well formed, has a member that its format does not have, or is of a format by
/// which this fabric tells nobody apart.
pub(super) fn read(value: &Value) -> Result<Value, Error> {
    let subject = SubjectId::read(value, FIELD)?;
    let canonical = canonical(&subject).ok_or_else(|| {
        Error::invalid(format!("{FIELD}.format"), "is not one by which this fabric tells subjects apart")
    })?;
    match beyond(value, &canonical, FIELD) {
        Some(field) => Err(Error::invalid(field, "is not a member of this format")),
        None => Ok(canonical),
    }
}

/// `None` if it, or a part of it, is only known to be of a format.
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
            let members = [
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
            for (name, member) in members {
                if let Some(member) = member {
                    value.insert(name.to_owned(), canonical(member)?);
                }
            }
            Value::Object(value)
        }
        SubjectId::Unusable { .. } => return None,
    })
}

/// The path of the first member of `value` that `known` does not have.
fn beyond(value: &Value, known: &Value, path: &str) -> Option<String> {
    match (value, known) {
        (Value::Object(members), Value::Object(known)) => members.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match known.get(name) {
                Some(known) => beyond(value, known, &path),
                None => Some(path),
            }
        }),
        (Value::Array(values), Value::Array(known)) => values
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(at, (value, known))| beyond(value, known, &format!("{path}[{at}]"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIFFE: &str = "spiffe://trust.example/ns/shop/sa/cart";

    #[track_caller]
    fn refused(value: &Value, text: &str) {
        let said = read(value).expect_err(text).to_string();
        assert!(said.contains(text), "{value}: {said}");
    }

    #[test]
    fn a_subject_of_every_format_that_tells_subjects_apart_is_kept_as_it_came() {
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
            assert_eq!(read(&subject).expect("read"), subject);
        }
    }

    #[test]
    fn a_format_by_which_nobody_is_told_apart_is_refused_wherever_it_stands() {
        let phone = json!({"format": "phone_number", "phone_number": "+12065550100"});
        for subject in [
            phone.clone(),
            json!({"format": "aliases", "identifiers": [{"format": "opaque", "id": "x"}, phone]}),
            json!({"format": "complex", "user": {"format": "opaque", "id": "x"}, "device": phone}),
        ] {
            refused(&subject, "subject.format: is not one by which");
        }
    }

    #[test]
    fn a_member_that_the_format_does_not_have_is_named() {
        let with_more = json!({"format": "email", "email": "a@b.example", "tenant": "t"});
        refused(&with_more, "subject.tenant: is not a member");
        refused(&json!({"format": "complex", "user": with_more}), "subject.user.tenant: is not a member");
        refused(
            &json!({"format": "aliases", "identifiers": [{"format": "opaque", "id": "x"}, with_more]}),
            "subject.identifiers[1].tenant: is not a member",
        );
        refused(&json!({"format": "email"}), "subject.email: must be");
        refused(&json!("a@b.example"), "subject: must be an object");
    }
}
