//! Whom a stream is not told about: a subject in the one form in which it is kept and compared.

use serde_json::{Map, Value, json};

use super::Error;
use crate::token::subject_id::{self, SubjectId};

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

/// Whether a stream is told about a subject once that one is not removed any more: what is removed beside it may
/// match it too, as aliases and complex subjects do, and would keep it out without a word. One of those can always
/// be added that was removed itself: a part of it that was removed as well is another's affair, and the parts wait
/// for it.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn is_not_left_out(subject: &Value, removed: &[SubjectId]) -> Result<(), Error> {
    let subject = SubjectId::read(&subject_id::relayed(subject, None), FIELD)?;
    let is_of_parts = matches!(subject, SubjectId::Aliases(_) | SubjectId::Complex(_));
    let can_be_added = is_of_parts && removed.contains(&subject);
    if !can_be_added && removed.iter().any(|other| *other != subject && other.matches(&subject)) {
        let rule = "another subject that was removed matches it: add that one first";
        return Err(Error::invalid(FIELD, rule));
    }
    Ok(())
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
    fn a_subject_that_another_one_keeps_out_is_not_added_in_vain() {
        let read = |value: &Value| SubjectId::read(value, FIELD).expect("a subject");
        let (a, b) = (json!({"format": "opaque", "id": "a"}), json!({"format": "opaque", "id": "b"}));
        let aliases = json!({"format": "aliases", "identifiers": [a, b]});
        let user = json!({"format": "complex", "user": a});
        let user_of_tenant = json!({"format": "complex", "user": a, "tenant": b});
        let uri = json!({"format": "uri", "uri": SPIFFE});
        let spiffe_id = json!({"format": "spiffe_id", "spiffe_id": SPIFFE});
        for (added, removed, is_good) in [
            (&a, vec![&a, &b], true),
            (&a, vec![&a, &aliases], false),
            (&aliases, vec![&aliases], true),
            (&aliases, vec![&aliases, &b], true),
            (&aliases, vec![&b], false),
            (&user_of_tenant, vec![&user], false),
            (&user_of_tenant, vec![&user_of_tenant], true),
            // Kept as `uri`, so that it is the same one.
            (&spiffe_id, vec![&uri], true),
            (&b, vec![], true),
        ] {
            let removed: Vec<_> = removed.into_iter().map(read).collect();
            assert_eq!(is_not_left_out(added, &removed).is_ok(), is_good, "{added}");
        }
        let said = is_not_left_out(&b, &[read(&aliases)]).expect_err("kept out").to_string();
        assert_eq!(said, "subject: another subject that was removed matches it: add that one first");
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
