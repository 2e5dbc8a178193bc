//! The explanation of a decision or of a denial, on one screen.

use std::io::{self, Write};

use serde_json::Value;

use super::output::{printable, printable_text, text};

/// Maximum characters of a shown value; the JSON output has it whole.
const VALUE_CHARS_MAX: usize = 120;

/// Writes a denial, and the decision of the policy if that denied.
pub(super) fn denial(out: &mut dyn Write, denied: &Value) -> io::Result<()> {
    let lines = [
        ("denied", "operation"),
        ("reason", "reason"),
        ("detail", "detail"),
        ("caller", "caller"),
        ("subject", "subject"),
        ("target", "target"),
        ("at", "denied_at"),
        ("node", "unit_id"),
        ("request", "request_id"),
    ];
    for (heading, member) in lines.into_iter().filter(|(_, member)| denied.get(*member).is_some()) {
        writeln!(out, "{heading:<9} {}", printable_text(denied, member))?;
    }
    let Some(policy) = denied.get("policy") else { return Ok(()) };
    let age = match policy.get("is_current") {
        Some(Value::Bool(true)) => "",
        _ => ", since replaced: the explanation is of the current one",
    };
    writeln!(out, "policy    {}{age}", printable_text(policy, "digest"))?;
    writeln!(out, "\ninput of `{}`", printable_text(policy, "point"))?;
    members(out, policy.get("input"))?;
    writeln!(out)?;
    decision(out, policy.get("explanation").unwrap_or(&Value::Null))
}

/// Writes a decision, the rules behind it, and the changes with which it would be an allow.
pub(super) fn decision(out: &mut dyn Write, explanation: &Value) -> io::Result<()> {
    let answer = explanation.get("answer").filter(|answer| !answer.is_null());
    let is_allowed = answer.and_then(|answer| answer.get("allow")) == Some(&Value::Bool(true));
    let reason = match answer {
        Some(answer) => text(answer, "reason"),
        None => text(explanation, "error"),
    };
    writeln!(out, "decision  {}: {}", if is_allowed { "allow" } else { "deny" }, printable(reason))?;
    writeln!(out, "\nrules")?;
    for (name, value) in explanation.get("rules").and_then(Value::as_object).into_iter().flatten() {
        // Its answer is the decision.
        if !name.ends_with(".decision") {
            let name = name.rsplit('.').next().unwrap_or(name);
            writeln!(out, "  {:<26} {}", printable(name), shown(value))?;
        }
    }
    if is_allowed {
        return Ok(());
    }
    let changes = explanation.get("allowed_if").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if changes.is_empty() {
        return writeln!(out, "\nno single change of the input was found with which it would be allowed");
    }
    writeln!(out, "\nallowed if one of these were different")?;
    changes.iter().try_for_each(|change| writeln!(out, "  {}", edit(change)))
}

fn edit(change: &Value) -> String {
    let member = printable_text(change, "member");
    match (change.get("set"), change.get("add"), change.get("remove")) {
        (Some(value), _, _) => format!("{member} is {}", shown(value)),
        (_, Some(element), _) => format!("{member} has {}", shown(element)),
        (_, _, Some(value)) => format!("{member} without {}", shown(value)),
        _ => member,
    }
}

/// The fields of an input, two levels deep.
fn members(out: &mut dyn Write, input: Option<&Value>) -> io::Result<()> {
    for (name, value) in input.and_then(Value::as_object).into_iter().flatten() {
        match value.as_object() {
            Some(members) => {
                for (inner, value) in members {
                    writeln!(out, "  {:<26} {}", printable(&format!("{name}.{inner}")), shown(value))?;
                }
            }
            None => writeln!(out, "  {:<26} {}", printable(name), shown(value))?,
        }
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    let text = printable(&value.to_string());
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(denied: &Value) -> String {
        let mut out = Vec::new();
        denial(&mut out, denied).expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn denial_by_policy_is_shown_with_rules_and_changes() {
        let text = written(&json!({
            "request_id": "4f", "unit_id": "n1", "denied_at": "2026-11-25T00:00:00.000Z", "operation": "exchange",
            "reason": "policy denied: no", "caller": "spiffe://a/b\u{1b}[2J",
            "policy": {
                "point": "exchange", "digest": "abc", "is_current": false,
                "input": {"caller": "c", "request": {"audience": "https://c"}},
                "explanation": {
                    "answer": {"allow": false, "reason": "no"}, "error": null,
                    "rules": {"data.svc.exchange.audience": "x".repeat(200), "data.svc.exchange.decision": {}},
                    "allowed_if": [
                        {"member": "request.audience", "set": "https://a"},
                        {"member": "request.scope", "remove": "db.write"},
                        {"member": "subject.capabilities", "add": "db.read"},
                    ],
                },
            },
        }));
        assert!(!text.contains('\u{1b}'), "{text}");
        let expected = format!(
            "\
denied    exchange
reason    policy denied: no
caller    spiffe://a/b?[2J
at        2026-11-25T00:00:00.000Z
node      n1
request   4f
policy    abc, since replaced: the explanation is of the current one

input of `exchange`
  caller                     \"c\"
  request.audience           \"https://c\"

decision  deny: no

rules
  audience                   \"{}…

allowed if one of these were different
  request.audience is \"https://a\"
  request.scope without \"db.write\"
  subject.capabilities has \"db.read\"
",
            "x".repeat(VALUE_CHARS_MAX - 1)
        );
        assert_eq!(text.replace('\u{fffd}', "?"), expected);
    }

    #[test]
    fn other_denial_has_its_detail_and_no_policy() {
        let denied = json!({
            "request_id": "4f", "operation": "exchange", "reason": "subject_token is not valid", "detail": "expired",
        });
        let expected =
            "denied    exchange\nreason    subject_token is not valid\ndetail    expired\nrequest   4f\n";
        assert_eq!(written(&denied), expected);
    }
}
