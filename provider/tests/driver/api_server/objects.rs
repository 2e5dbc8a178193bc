//! The objects: create, read, list, replace, patch, apply, delete.

use std::collections::BTreeMap;

use hyper::Method;
use serde_json::{Value as Json, json};
use trust_fabric_spec::check;

use super::discovery::{self, Kind, table};
use super::ownership::{self, Conflict, Manager, Owners};
use super::{Event, Order, Reply, State, Watch, failure, status};

/// Kind, namespace and name.
pub type Key = (String, String, String);

/// The clock stands still, so that a transcript is repeatable.
const TIME: &str = "2026-11-01T12:00:00Z";

/// A stored object, without its `managedFields`.
#[derive(Clone, Debug, Default)]
pub struct Object {
    pub json: Json,
    owners: Owners,
}

/// The object or list that a path names.
struct Target<'p> {
    kind: Kind,
    namespace: Option<&'p str>,
    name: Option<&'p str>,
    is_status: bool,
}

impl State {
    pub(super) fn new() -> Self {
        let mut state = Self { kinds: discovery::built_in(), ..Self::default() };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "uid": "0"}});
        let key = ("namespaces".to_owned(), String::new(), "default".to_owned());
        state.objects.insert(key, Object { json: namespace, owners: Owners::new() });
        state
    }

    /// Forgets the events until now, as a compaction does.
    pub fn compact(&mut self) {
        self.oldest = self.version;
        self.events.clear();
    }

    /// A stored object.
    pub fn stored(&self, kind: &str, namespace: &str, name: &str) -> Option<Json> {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let kind = self.kinds.iter().find(|known| known.id() == kind)?;
        Some(shown(kind, self.objects.get(&key)?))
    }

    pub(super) fn answer(&mut self, order: &Order) -> Reply {
        if order.query.get("dryRun").is_some_and(|dry| dry == "All") {
            let order =
                Order { query: BTreeMap::from_iter(without(&order.query, "dryRun")), ..order.clone() };
            return self.clone().answer(&order);
        }
        let path: Vec<&str> = order.path.split('/').filter(|segment| !segment.is_empty()).collect();
        if let Some(reply) = self.discovery(&path) {
            return reply;
        }
        let Some(target) = self.target(&path) else { return Reply::Text(404, "404 page not found\n") };
        let outcome = match (&order.method, target.name) {
            (&Method::GET, None) => Ok(self.list(&target, order)),
            (&Method::GET, Some(_)) => self.read(&target, order),
            (&Method::POST, None) => self.create(&target, order),
            (&Method::PUT, Some(_)) => self.replace(&target, order),
            (&Method::PATCH, Some(_)) => self.patch(&target, order),
            (&Method::DELETE, Some(_)) => self.delete(&target, order),
            _ => Err(failure(405, "MethodNotAllowed", "the server does not allow this method")),
        };
        outcome.unwrap_or_else(|refused| refused)
    }

    fn target<'p>(&self, path: &[&'p str]) -> Option<Target<'p>> {
        let (api_version, rest) = match path {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, plural, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] => (Some(*namespace), plural, rest),
            [plural, rest @ ..] => (None, plural, rest),
            [] => return None,
        };
        let (name, is_status) = match rest {
            [] => (None, false),
            [name] => (Some(*name), false),
            [name, "status"] => (Some(*name), true),
            _ => return None,
        };
        let is_known = |kind: &&Kind| kind.api_version() == api_version && kind.name("plural") == *plural;
        let kind = self.kinds.iter().find(is_known)?.clone();
        Some(Target { kind, namespace, name, is_status })
    }

    fn list(&self, target: &Target<'_>, order: &Order) -> Reply {
        let name = order.query.get("fieldSelector").and_then(|text| text.strip_prefix("metadata.name="));
        if order.query.get("watch").is_some_and(|watch| matches!(watch.as_str(), "1" | "true")) {
            let from = order.query.get("resourceVersion").and_then(|version| version.parse().ok());
            return Reply::Watch(Watch {
                kind: target.kind.id(),
                namespace: target.namespace.map(str::to_owned),
                name: name.map(str::to_owned),
                from: from.unwrap_or(self.version),
                has_bookmarks: order.query.get("allowWatchBookmarks").is_some_and(|wanted| wanted == "true"),
            });
        }
        let is_listed = |(kind, namespace, known): &&Key| {
            *kind == target.kind.id()
                && target.namespace.is_none_or(|stated| stated == namespace)
                && name.is_none_or(|name| name == known)
        };
        let keys = self.objects.keys().filter(is_listed);
        let items: Vec<Json> = keys.map(|key| shown(&target.kind, &self.objects[key])).collect();
        if order.accept.contains("as=Table") {
            return Reply::Json(200, table(&target.kind, &items, self.version));
        }
        let metadata = json!({"resourceVersion": self.version.to_string()});
        let kind = target.kind.name("listKind");
        let api_version = target.kind.api_version();
        let list = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items});
        Reply::Json(200, list)
    }

    fn read(&mut self, target: &Target<'_>, order: &Order) -> Result<Reply, Reply> {
        let object = shown(&target.kind, self.existing(target)?);
        if order.accept.contains("as=Table") {
            return Ok(Reply::Json(200, table(&target.kind, &[object], self.version)));
        }
        Ok(Reply::Json(200, object))
    }

    fn create(&mut self, target: &Target<'_>, order: &Order) -> Result<Reply, Reply> {
        let object = body(order)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let target = Target { name: Some(&name), kind: target.kind.clone(), ..*target };
        if self.objects.contains_key(&key(&target)) {
            let message = format!("{} {name:?} already exists", target.kind.id());
            return Err(Reply::Json(409, status(409, "AlreadyExists", &message, &details(&target))));
        }
        self.written(&target, &Object::default(), object, Owner::Update(order), 201)
    }

    fn replace(&mut self, target: &Target<'_>, order: &Order) -> Result<Reply, Reply> {
        let (live, object) = (self.existing(target)?.clone(), body(order)?);
        let stated = &object["metadata"]["resourceVersion"];
        if stated.is_string() && *stated != live.json["metadata"]["resourceVersion"] {
            let message = format!(
                "Operation cannot be fulfilled on {}: the object has been modified",
                target.kind.id()
            );
            return Err(failure(409, "Conflict", message));
        }
        self.written(target, &live, object, Owner::Update(order), 200)
    }

    fn patch(&mut self, target: &Target<'_>, order: &Order) -> Result<Reply, Reply> {
        match order.content_type.as_str() {
            "application/merge-patch+json" => {
                let (live, patch) = (self.existing(target)?.clone(), body(order)?);
                let mut object = live.json.clone();
                merge(&mut object, &patch);
                self.written(target, &live, object, Owner::Update(order), 200)
            }
            "application/apply-patch+yaml" => self.apply(target, order),
            other => {
                Err(failure(415, "UnsupportedMediaType", format!("the fake has no patch of type {other}")))
            }
        }
    }

    fn apply(&mut self, target: &Target<'_>, order: &Order) -> Result<Reply, Reply> {
        let Some(manager) = order.query.get("fieldManager") else {
            return Err(failure(400, "BadRequest", "fieldManager is required for apply patch"));
        };
        let manager = Manager { name: manager.clone(), operation: "Apply", subresource: subresource(target) };
        let mut applied = body(order)?;
        check::remove_nulls(&mut applied);
        let live = self.objects.get(&key(target)).cloned();
        let uid = &applied["metadata"]["uid"];
        let live_uid = live.as_ref().map(|live| &live.json["metadata"]["uid"]);
        if uid.is_string() && live_uid != Some(uid) {
            let found = live_uid.map_or("no existing object was found".to_owned(), |uid| {
                format!("the existing object has {uid}")
            });
            return Err(failure(
                409,
                "Conflict",
                format!("uid mismatch: the provided object specified {uid}, and {found}"),
            ));
        }
        let code = if live.is_some() { 200 } else { 201 };
        let live = live.unwrap_or_default();
        let is_forced = order.query.get("force").is_some_and(|force| force == "true");
        let merged = ownership::apply(&live.json, &live.owners, &applied, &manager, is_forced);
        let (mut object, owners) = merged.map_err(|conflicts| refused(&target.kind, &conflicts))?;
        for name in ["apiVersion", "kind"] {
            object[name] = applied[name].clone();
        }
        object["metadata"]["name"] = applied["metadata"]["name"].clone();
        unknown_fields(&target.kind, order, &applied)?;
        self.written(target, &live, object, Owner::Apply(order, owners), code)
    }

    fn delete(&mut self, target: &Target<'_>, order: &Order) -> Result<Reply, Reply> {
        let live = self.existing(target)?.clone();
        let options: Json = serde_json::from_slice(&order.body).unwrap_or_default();
        let (uid, known) = (&options["preconditions"]["uid"], &live.json["metadata"]["uid"]);
        if uid.is_string() && uid != known {
            let message =
                format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {known}");
            return Err(failure(409, "Conflict", message));
        }
        if live.json["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
            let mut marked = live;
            marked.json["metadata"]["deletionTimestamp"] = json!(TIME);
            let object = self.store(target, marked, "MODIFIED");
            return Ok(Reply::Json(200, object));
        }
        self.remove(target);
        let mut done = status(200, "", "", &details(target));
        done["status"] = json!("Success");
        Ok(Reply::Json(200, done))
    }

    fn existing(&self, target: &Target<'_>) -> Result<&Object, Reply> {
        self.objects.get(&key(target)).ok_or_else(|| {
            let message = format!("{} {:?} not found", target.kind.id(), target.name.unwrap_or_default());
            Reply::Json(404, status(404, "NotFound", &message, &details(target)))
        })
    }

    /// Completes, judges and stores an object.
    fn written(
        &mut self,
        target: &Target<'_>,
        live: &Object,
        mut object: Json,
        owner: Owner<'_>,
        code: u16,
    ) -> Result<Reply, Reply> {
        let kind = &target.kind;
        self.namespace_exists(target)?;
        let (Owner::Update(order) | Owner::Apply(order, _)) = &owner;
        unknown_fields(kind, order, &object)?;
        check::remove_nulls(&mut object);
        if target.is_status {
            object = changed(&live.json, "status", &object["status"]);
        } else if kind.has_status {
            object = changed(&object, "status", &live.json["status"]);
        }
        self.set_metadata(target, &live.json, &mut object);
        check::set_defaults(&kind.schema, &mut object);
        judged(kind, &object, live.json.get("spec").map(|_| &live.json))?;
        let owners = match owner {
            Owner::Apply(_, owners) => owners,
            Owner::Update(order) => {
                let agent = order.query.get("fieldManager").map_or("unknown", String::as_str).to_owned();
                let manager = Manager { name: agent, operation: "Update", subresource: subresource(target) };
                ownership::updated(&live.json, &live.owners, &object, &manager)
            }
        };
        if kind.name("kind") == "CustomResourceDefinition" {
            let defined = Kind::defined(&object);
            let defined = defined.ok_or_else(|| failure(422, "Invalid", "this is no definition"))?;
            self.kinds.retain(|known| known.id() != defined.id());
            self.kinds.push(defined);
            let established = json!({"type": "Established", "status": "True"});
            object["status"] = json!({"conditions": [established]});
        }
        let is_gone = object["metadata"]["deletionTimestamp"].is_string()
            && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let is_new = live.json.is_null();
        let stored =
            self.store(target, Object { json: object, owners }, if is_new { "ADDED" } else { "MODIFIED" });
        if is_gone {
            self.remove(target);
        }
        Ok(Reply::Json(code, stored))
    }

    fn namespace_exists(&self, target: &Target<'_>) -> Result<(), Reply> {
        let Some(namespace) = target.namespace else { return Ok(()) };
        let key = ("namespaces".to_owned(), String::new(), namespace.to_owned());
        if self.objects.contains_key(&key) {
            return Ok(());
        }
        let details = json!({"name": namespace, "kind": "namespaces"});
        let message = format!("namespaces {namespace:?} not found");
        Err(Reply::Json(404, status(404, "NotFound", &message, &details)))
    }

    /// The metadata that the server states.
    fn set_metadata(&mut self, target: &Target<'_>, live: &Json, object: &mut Json) {
        self.version += 1;
        let before = &live["metadata"];
        let metadata = &mut object["metadata"];
        if let Some(namespace) = target.namespace {
            metadata["namespace"] = namespace.into();
        }
        let uid = format!("00000000-0000-4000-8000-{:012}", self.version);
        metadata["uid"] = before.get("uid").cloned().unwrap_or_else(|| uid.into());
        metadata["creationTimestamp"] = json!(TIME);
        metadata["resourceVersion"] = self.version.to_string().into();
        if let Some(deleted) = before.get("deletionTimestamp") {
            metadata["deletionTimestamp"] = deleted.clone();
        }
        if let Some(members) = metadata.as_object_mut() {
            members.remove("managedFields");
        }
        let generation = before["generation"].as_u64().unwrap_or_default();
        let is_changed = live.get("spec") != object.get("spec");
        object["metadata"]["generation"] = (generation + u64::from(is_changed)).into();
    }

    fn store(&mut self, target: &Target<'_>, object: Object, change: &'static str) -> Json {
        let json = shown(&target.kind, &object);
        self.objects.insert(key(target), object);
        self.publish(target, change, json.clone());
        json
    }

    fn remove(&mut self, target: &Target<'_>) {
        self.version += 1;
        if let Some(object) = self.objects.remove(&key(target)) {
            let json = shown(&target.kind, &object);
            if target.kind.name("kind") == "CustomResourceDefinition" {
                let name = target.name.unwrap_or_default();
                self.kinds.retain(|known| known.id() != name);
                self.objects.retain(|(kind, _, _), _| kind != name);
            }
            self.publish(target, "DELETED", json);
        }
    }

    fn publish(&mut self, target: &Target<'_>, change: &'static str, object: Json) {
        self.events.push(Event { version: self.version, kind: target.kind.id(), change, object });
    }
}

/// The party that writes.
enum Owner<'o> {
    Update(&'o Order),
    Apply(&'o Order, Owners),
}

fn without(query: &BTreeMap<String, String>, name: &str) -> Vec<(String, String)> {
    query.clone().into_iter().filter(|(known, _)| known != name).collect()
}

fn key(target: &Target<'_>) -> Key {
    let text = |part: Option<&str>| part.unwrap_or_default().to_owned();
    (target.kind.id(), text(target.namespace), text(target.name))
}

fn details(target: &Target<'_>) -> Json {
    json!({"name": target.name, "group": target.kind.group, "kind": target.kind.name("plural")})
}

fn subresource(target: &Target<'_>) -> &'static str {
    if target.is_status { "status" } else { "" }
}

/// An object as responses have it.
fn shown(kind: &Kind, object: &Object) -> Json {
    let mut json = object.json.clone();
    if !object.owners.is_empty() {
        json["metadata"]["managedFields"] =
            ownership::managed_fields(&object.owners, &kind.api_version(), TIME);
    }
    json
}

fn body(order: &Order) -> Result<Json, Reply> {
    let parsed = serde_json::from_slice(&order.body).ok();
    let parsed = parsed.or_else(|| yaml_serde::from_slice(&order.body).ok());
    parsed.ok_or_else(|| failure(400, "BadRequest", "the body is neither JSON nor YAML"))
}

/// `object` with another value of one member; null removes it.
fn changed(object: &Json, name: &str, value: &Json) -> Json {
    let mut object = object.clone();
    match (object.as_object_mut(), value.is_null()) {
        (Some(members), true) => drop(members.remove(name)),
        _ => object[name] = value.clone(),
    }
    object
}

/// A merge patch (RFC 7396).
fn merge(value: &mut Json, patch: &Json) {
    let Json::Object(members) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, patch) in members {
        match value.as_object_mut() {
            Some(members) if patch.is_null() => drop(members.remove(name)),
            _ => merge(&mut value[name.as_str()], patch),
        }
    }
}

/// Refuses fields that the schema does not have, if the request is strict.
fn unknown_fields(kind: &Kind, order: &Order, object: &Json) -> Result<(), Reply> {
    let mut found = Vec::new();
    unknown(&kind.schema, object, "", &mut found);
    found.retain(|field: &String| !field.starts_with("metadata."));
    let is_strict = order.query.get("fieldValidation").is_none_or(|level| level == "Strict");
    if found.is_empty() || !is_strict {
        return Ok(());
    }
    let fields: Vec<String> = found.iter().map(|field| format!("unknown field {field:?}")).collect();
    Err(failure(400, "BadRequest", format!("strict decoding error: {}", fields.join(", "))))
}

fn unknown(schema: &Json, value: &Json, at: &str, found: &mut Vec<String>) {
    let place = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    if let (Some(known), Some(members)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, member) in members {
            match known.get(name) {
                Some(schema) => unknown(schema, member, &place(name), found),
                None => found.push(place(name)),
            }
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        unknown(&schema["items"], item, &format!("{at}[{index}]"), found);
    }
}

/// Refuses an object that its schema or its rules refuse.
fn judged(kind: &Kind, object: &Json, old: Option<&Json>) -> Result<(), Reply> {
    if kind.schema.is_null() {
        return Ok(());
    }
    let validator = jsonschema::validator_for(&kind.schema)
        .map_err(|error| failure(500, "InternalError", error.to_string()))?;
    let mut causes: Vec<(String, String)> = validator
        .iter_errors(object)
        .map(|error| {
            let path = error.instance_path().to_string();
            (path.trim_start_matches('/').replace('/', "."), error.to_string())
        })
        .collect();
    if causes.is_empty() {
        let broken = check::broken_rules(&kind.schema, object, old, "");
        let cause = |violation: check::Violation| {
            (
                violation.path.trim_start_matches('.').to_owned(),
                format!("Invalid value: {}", violation.message),
            )
        };
        causes = broken.into_iter().map(cause).collect();
    }
    if causes.is_empty() {
        return Ok(());
    }
    let name = &object["metadata"]["name"];
    let listed: Vec<String> = causes.iter().map(|(field, message)| format!("{field}: {message}")).collect();
    let message = format!("{}.{} {name} is invalid: {}", kind.name("kind"), kind.group, listed.join(", "));
    let causes: Vec<Json> = causes
        .into_iter()
        .map(|(field, message)| json!({"reason": "FieldValueInvalid", "message": message, "field": field}))
        .collect();
    let details = json!({"name": name, "group": kind.group, "kind": kind.name("kind"), "causes": causes});
    Err(Reply::Json(422, status(422, "Invalid", &message, &details)))
}

/// The response to an apply with conflicts.
fn refused(kind: &Kind, conflicts: &[Conflict]) -> Reply {
    let described: Vec<(String, String)> =
        conflicts.iter().map(|conflict| ownership::describe(conflict, &kind.api_version(), TIME)).collect();
    let causes: Vec<Json> = described
        .iter()
        .map(|(text, field)| json!({"reason": "FieldManagerConflict", "message": text, "field": field}))
        .collect();
    let listed: Vec<String> = described.iter().map(|(text, field)| format!("{text}: {field}")).collect();
    let plural = if described.len() == 1 { "conflict" } else { "conflicts" };
    let message = format!("Apply failed with {} {plural}: {}", described.len(), listed.join("\n"));
    Reply::Json(409, status(409, "Conflict", &message, &json!({"causes": causes})))
}
