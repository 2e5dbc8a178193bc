//! The custom resource definition.

use serde_json::{Value, json};

use crate::rules::RULES;
use crate::spec::FabricSpec;
use crate::status::FabricStatus;
use crate::{Error, schema};

/// Group of the custom resource; it can change only before the first release.
pub const GROUP: &str = "fabric.svc";

pub const VERSION: &str = "v1alpha1";

const HEAD: &str = "# Generated from fabric-spec/ by `make fix`; a test compares the two.\n";

/// The definition as YAML.
///
/// # Errors
/// [`Error::Generated`] if a rule is about a path that the schema does not have.
pub fn yaml() -> Result<String, Error> {
    let text = yaml_serde::to_string(&definition()?).map_err(|error| Error::Generated(error.to_string()))?;
    Ok(format!("{HEAD}{text}"))
}

/// The definition.
///
/// # Errors
/// As [`yaml`].
pub fn definition() -> Result<Value, Error> {
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("fabrics.{GROUP}"),
            // Without the definition, Kubernetes would delete every fabric.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": "Fabric",
                "listKind": "FabricList",
                "plural": "fabrics",
                "singular": "fabric",
                "shortNames": ["fab"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": object_schema()?},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Phase", "string", ".status.phase"),
                    column("Leader", "string", ".status.leader"),
                    column("Members", "integer", ".spec.replicas"),
                    column("Version", "string", ".spec.version"),
                    column("Age", "date", ".metadata.creationTimestamp"),
                ],
            }],
        },
    });
    definition.sort_all_objects();
    Ok(definition)
}

fn object_schema() -> Result<Value, Error> {
    let mut object = json!({
        "description": "A Trust Fabric: one cluster of one, three or five nodes.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema::of::<FabricSpec>(),
            "status": schema::of::<FabricStatus>(),
        },
    });
    schema::structural(&mut object);
    for rule in &RULES {
        let place = object.pointer_mut(rule.at).and_then(Value::as_object_mut);
        let place = place.ok_or_else(|| Error::Generated(format!("a rule is about {}", rule.at)))?;
        let rules = place.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(json!({"rule": rule.cel, "message": rule.message}));
        }
    }
    Ok(object)
}
