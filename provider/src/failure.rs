//! The one map from a failed request to a message for the user.

use trust_fabric_client as client;

use crate::cluster::Failure;
use crate::diagnostic::Diagnostic;
use crate::kubernetes;
use crate::resource::{Operation, Resource, invalid};
use crate::schema::Attribute;

/// The failed action, in words.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// `create`
    pub verb: &'static str,
    /// `created`
    pub participle: &'static str,
    /// `tool`
    pub noun: &'static str,
    pub attributes: &'static [Attribute],
}

/// The message of a failed operation on a resource.
#[must_use]
pub fn diagnostic(resource: &dyn Resource, operation: Operation, failure: &Failure) -> Diagnostic {
    if let Failure::Kubernetes(error) = failure {
        return kubernetes::failure::diagnostic(resource, operation, error);
    }
    let aim = Aim {
        verb: operation.verb(),
        participle: operation.participle(),
        noun: resource.noun(),
        attributes: resource.table().attributes,
    };
    message(aim, |status| resource.advice(operation, status), failure)
}

/// The message of a failure, with this corrective action of a status instead of the common one.
#[must_use]
pub fn message(aim: Aim, own_advice: impl Fn(u16) -> Option<&'static str>, failure: &Failure) -> Diagnostic {
    let Aim { verb, participle, noun, attributes } = aim;
    if let Failure::Invalid { attribute, rule } = failure {
        return invalid(attribute, rule);
    }
    let Some(refusal) = failure.refusal() else {
        let summary = match failure {
            Failure::NoCredential(_) => format!("No credential to {verb} the {noun}"),
            Failure::Stopped => format!("Stopped before the {noun} could be {participle}"),
            _ => format!("Failed to {verb} the {noun}"),
        };
        let detail = format!("{failure}\n\n{}", advice_without_response(failure));
        return Diagnostic::error(summary, detail.trim_end());
    };
    let advice = own_advice(refusal.status).unwrap_or_else(|| advice(refusal));
    let repeated = match failure {
        Failure::OutOfTime { after_secs, .. } => format!(" Repeated for {after_secs} s."),
        _ => String::new(),
    };
    let attribute = attribute_of(&refusal.description, attributes);
    let description = match attribute {
        Some(attribute) if attribute.is_sensitive => without_urls(&refusal.description),
        _ => refusal.description.clone(),
    };
    let detail = format!("{description}\n\n{}{repeated}\n\n{advice}", place(refusal));
    let summary = format!("The fabric refused to {verb} the {noun}");
    let message = Diagnostic::error(summary, detail.trim_end());
    match attribute {
        Some(attribute) if matches!(refusal.status, 400 | 409) => message.at(attribute.name),
        _ => message,
    }
}

/// A description of a sensitive URL: the fabric may state it in another spelling than the configuration.
fn without_urls(description: &str) -> String {
    let word = |word: &str| if word.contains("://") { "(sensitive)".to_owned() } else { word.to_owned() };
    description.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Status, code, node and request, by which an operator finds the request in log and audit.
fn place(refusal: &client::Refusal) -> String {
    let request_id = refusal.body.get("request_id").and_then(|id| id.as_str());
    let request = request_id.map(|id| format!(", request {id}")).unwrap_or_default();
    format!("Status {} ({}), node {}{request}.", refusal.status, refusal.code, refusal.server)
}

/// The corrective action of a refusal.
fn advice(refusal: &client::Refusal) -> &'static str {
    match refusal.status {
        401 => {
            "The fabric does not accept the credential. A token may have expired, or may not be one for the fabric \
             itself; a certificate must be issued by a CA that the node trusts."
        }
        403 => {
            "The identity of the provider may not do this. A capability is granted in the node's configuration \
             ([[callers]]) or by the policy; an object belongs to the identity that created it."
        }
        404 => {
            "It does not exist any more, or belongs to another identity: run plan again. If the route is unknown, the \
             endpoint is no node of the Trust Fabric."
        }
        413 => "The configuration of this resource is too large.",
        429 => {
            "The fabric accepts no more of these now. Apply again later, or ask its operator for the limit."
        }
        501 => "This part of the fabric is not configured at the node.",
        503 => "The cluster has no leader, or the node is starting. Apply again when it is healthy.",
        500 => "This is a fault of the node. Its log has the request.",
        _ => "",
    }
}

fn advice_without_response(failure: &Failure) -> &'static str {
    let error = match failure {
        Failure::Fabric(error) | Failure::OutOfTime { last: error, .. } => &**error,
        Failure::Stopped => {
            return "The request may have been carried out. Plan again to see it.";
        }
        _ => return "",
    };
    match error {
        client::Error::Handshake { reason, .. } if reason.contains("invalid peer certificate") => {
            "The node's certificate is not trusted: ca_cert must be the CA that issued it, and the endpoint one of its \
             names."
        }
        client::Error::Handshake { .. } => {
            "The node does not accept the client certificate: it may have expired, or be issued by another CA."
        }
        client::Error::Unreachable { .. } => "Is endpoint the address of a node, and is the node running?",
        client::Error::Foreign(_) => {
            "Another program listens at the endpoint, or a proxy answers in its place."
        }
        _ => "",
    }
}

/// The attribute that an error description begins with: `resource_uri: …`, `events_requested[0]: …` or `key.x: …`.
fn attribute_of(description: &str, attributes: &'static [Attribute]) -> Option<&'static Attribute> {
    let (member, _) = description.split_once(':')?;
    let member = member.split(['[', '.']).next().unwrap_or(member);
    attributes.iter().find(|attribute| attribute.wire == member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::mcp_tool::McpTool;

    fn refused(status: u16, description: &str) -> Failure {
        Failure::Fabric(Box::new(client::Error::Refused(Box::new(client::Refusal {
            server: "https://node-1:8694".parse().expect("url"),
            status,
            code: "invalid_request".to_owned(),
            description: description.to_owned(),
            retry_after: None,
            body: serde_json::json!({"request_id": "r-1"}),
        }))))
    }

    #[test]
    fn refusal_names_attribute_status_node_and_request() {
        let failure = refused(400, "allowed_targets[3]: must be 1 to 2048 characters");
        let message = diagnostic(&McpTool, Operation::Create, &failure);
        assert_eq!(message.attribute, Some("allowed_targets"));
        assert_eq!(message.summary, "The fabric refused to create the tool");
        for part in
            ["must be 1 to 2048", "Status 400 (invalid_request)", "https://node-1:8694/", "request r-1"]
        {
            assert!(message.detail.contains(part), "{message:?}");
        }
    }

    #[test]
    fn refusal_of_no_attribute_points_at_the_resource() {
        for (status, description) in [(400, "JSON: trailing"), (400, "no colon"), (403, "name: denied")] {
            let message = diagnostic(&McpTool, Operation::Create, &refused(status, description));
            assert_eq!(message.attribute, None, "{description}");
        }
    }

    #[test]
    fn precondition_and_conflict_state_the_way_out() {
        let text = |operation, status| diagnostic(&McpTool, operation, &refused(status, "x")).detail;
        assert!(text(Operation::Update, 412).contains("changed outside of Terraform"));
        assert!(text(Operation::Create, 409).contains("import it or choose another tool_id"));
        assert!(text(Operation::Create, 401).contains("expired"));
    }
}
