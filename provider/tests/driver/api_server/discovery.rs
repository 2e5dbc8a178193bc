//! The kinds of objects: discovery, `OpenAPI` v3, tables.

use serde_json::{Map, Value as Json, json};

use super::{Reply, State, failure};

const VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];

/// A kind of objects.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    /// `plural`, `singular`, `kind`, `listKind`, `shortNames`.
    pub names: Json,
    pub is_namespaced: bool,
    pub has_status: bool,
    /// A structural schema; null for a kind that is built in.
    pub schema: Json,
    pub columns: Json,
}

impl Kind {
    fn built_in(group: &str, plural: &str, kind: &str) -> Self {
        let names = json!({
            "plural": plural, "singular": plural.trim_end_matches('s'), "kind": kind, "listKind": format!("{kind}List"),
        });
        Self {
            group: group.to_owned(),
            version: "v1".to_owned(),
            names,
            is_namespaced: false,
            has_status: false,
            schema: Json::Null,
            columns: json!([]),
        }
    }

    /// The kind that a definition defines.
    pub fn defined(definition: &Json) -> Option<Self> {
        let spec = &definition["spec"];
        let version = spec["versions"].as_array()?.first()?;
        Some(Self {
            group: spec["group"].as_str()?.to_owned(),
            version: version["name"].as_str()?.to_owned(),
            names: spec["names"].clone(),
            is_namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            schema: version["schema"]["openAPIV3Schema"].clone(),
            columns: version["additionalPrinterColumns"].clone(),
        })
    }

    pub fn name(&self, which: &str) -> &str {
        self.names[which].as_str().unwrap_or_default()
    }

    /// `fabrics.fabric.svc`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.name("plural"), self.group).trim_end_matches('.').to_owned()
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `apis/fabric.svc/v1alpha1`.
    fn root(&self) -> String {
        format!("{}/{}", if self.group.is_empty() { "api" } else { "apis" }, self.api_version())
    }

    fn resources(&self) -> Vec<Json> {
        let mut resource = json!({
            "name": self.name("plural"), "singularName": self.name("singular"), "kind": self.name("kind"),
            "namespaced": self.is_namespaced, "verbs": VERBS,
        });
        if self.names["shortNames"].is_array() {
            resource["shortNames"] = self.names["shortNames"].clone();
        }
        let status = json!({
            "name": format!("{}/status", self.name("plural")), "singularName": "", "kind": self.name("kind"),
            "namespaced": self.is_namespaced, "verbs": ["get", "patch", "update"],
        });
        if self.has_status { vec![resource, status] } else { vec![resource] }
    }

    /// The part of an `OpenAPI` document that `kubectl` reads: the schema, and that a patch takes `fieldValidation`.
    fn openapi(&self) -> (Map<String, Json>, (String, Json)) {
        let known = json!({"group": self.group, "version": self.version, "kind": self.name("kind")});
        let key = "x-kubernetes-group-version-kind";
        let scope = if self.is_namespaced { "/namespaces/{namespace}" } else { "" };
        let list = format!("/{}{scope}/{}", self.root(), self.name("plural"));
        let parameters: Vec<Json> = ["dryRun", "fieldManager", "fieldValidation", "force"]
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
            .into();
        let get = json!({key: known, "responses": {}});
        let patch = json!({key: known, "parameters": parameters, "responses": {}});
        let mut schema = if self.schema.is_null() { json!({"type": "object"}) } else { self.schema.clone() };
        schema[key] = json!([known]);
        let one = format!("{list}/{{name}}");
        let paths = [(list, json!({"get": get})), (one, json!({"get": get, "patch": patch}))];
        (paths.into_iter().collect(), (format!("{}.{}", self.id(), self.version), schema))
    }
}

pub fn built_in() -> Vec<Kind> {
    let mut definitions =
        Kind::built_in("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition");
    definitions.names["shortNames"] = json!(["crd", "crds"]);
    vec![Kind::built_in("", "namespaces", "Namespace"), definitions]
}

impl State {
    /// The response to a path of discovery; `None` for others.
    pub(super) fn discovery(&self, path: &[&str]) -> Option<Reply> {
        let body = match path {
            ["version"] => json!({"major": "1", "minor": "32", "gitVersion": "v1.32.4-fake"}),
            ["api"] => json!({"kind": "APIVersions", "versions": ["v1"]}),
            ["apis"] => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": self.groups()}),
            ["api", "v1"] => self.resources("v1")?,
            ["apis", group, version] => match self.resources(&format!("{group}/{version}")) {
                Some(resources) => resources,
                None => return Some(Reply::Text(404, "404 page not found\n")),
            },
            ["openapi", "v3"] => {
                let path = |kind: &Kind| {
                    let at = format!("/openapi/v3/{}?hash={}", kind.root(), self.version_of_kinds());
                    (kind.root(), json!({"serverRelativeURL": at}))
                };
                json!({"paths": self.kinds.iter().map(path).collect::<Map<_, _>>()})
            }
            ["openapi", "v3", root @ ..] => self.openapi(&root.join("/")),
            ["openapi", ..] => return Some(failure(404, "NotFound", "only OpenAPI v3 is served")),
            _ => return None,
        };
        Some(Reply::Json(200, body))
    }

    fn version_of_kinds(&self) -> usize {
        self.kinds.len()
    }

    fn groups(&self) -> Vec<Json> {
        let named = self.kinds.iter().filter(|kind| !kind.group.is_empty());
        let group = |kind: &Kind| {
            let version = json!({"groupVersion": kind.api_version(), "version": kind.version});
            json!({"name": kind.group, "versions": [version], "preferredVersion": version})
        };
        named.map(group).collect()
    }

    fn resources(&self, api_version: &str) -> Option<Json> {
        let kinds = self.kinds.iter().filter(|kind| kind.api_version() == api_version);
        let resources: Vec<Json> = kinds.flat_map(Kind::resources).collect();
        (!resources.is_empty()).then(|| {
            json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources,
            })
        })
    }

    fn openapi(&self, root: &str) -> Json {
        let (mut paths, mut schemas) = (Map::new(), Map::new());
        for kind in self.kinds.iter().filter(|kind| kind.root() == root) {
            let (more, schema) = kind.openapi();
            paths.extend(more);
            schemas.extend([schema]);
        }
        json!({
            "openapi": "3.0.0", "info": {"title": "Fake", "version": "unversioned"}, "paths": paths,
            "components": {"schemas": schemas},
        })
    }
}

/// Objects as a table, which `kubectl get` prints.
pub fn table(kind: &Kind, objects: &[Json], version: u64) -> Json {
    let columns: Vec<&Json> = kind.columns.as_array().into_iter().flatten().collect();
    let column = |name: &str, kind: &str, format: &str| json!({"name": name, "type": kind, "format": format, "description": "", "priority": 0});
    let text = |column: &Json, key: &str| column[key].as_str().unwrap_or_default().to_owned();
    let more = columns.iter().map(|stated| column(&text(stated, "name"), &text(stated, "type"), ""));
    let definitions: Vec<Json> = std::iter::once(column("Name", "string", "name")).chain(more).collect();
    let row = |object: &Json| {
        let cell = |column: &&&Json| {
            // The clock stands still.
            if column["type"] == "date" {
                return json!("0s");
            }
            let pointer = text(column, "jsonPath").replace('.', "/");
            object.pointer(&pointer).cloned().unwrap_or_default()
        };
        let cells =
            std::iter::once(object["metadata"]["name"].clone()).chain(columns.iter().map(|c| cell(&c)));
        let partial = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
        });
        json!({"cells": cells.collect::<Vec<_>>(), "object": partial})
    };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version.to_string()},
        "columnDefinitions": definitions, "rows": objects.iter().map(row).collect::<Vec<_>>(),
    })
}
