//! The owners of fields, and server-side apply.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};

/// The names on the way to a field.
pub type Path = Vec<String>;

/// A manager of fields: its name, `Apply` or `Update`, and the subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    pub name: String,
    pub operation: &'static str,
    pub subresource: &'static str,
}

/// The fields of each manager.
pub type Owners = BTreeMap<Manager, BTreeSet<Path>>;

/// A field that another manager owns, and sets to another value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    pub manager: Manager,
    pub field: Path,
}

/// The fields of an object that have owners.
pub fn fields(object: &Json) -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        match name.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for name in ["annotations", "finalizers", "labels"] {
                    let value = value.get(name).filter(|value| !value.is_null());
                    collect(&mut found, &mut vec!["metadata".to_owned(), name.to_owned()], value);
                }
            }
            _ => collect(&mut found, &mut vec![name.clone()], Some(value)),
        }
    }
    found
}

fn collect(found: &mut BTreeSet<Path>, path: &mut Path, value: Option<&Json>) {
    match value {
        None => {}
        Some(Json::Object(members)) if !members.is_empty() => {
            for (name, value) in members {
                path.push(name.clone());
                collect(found, path, Some(value));
                path.pop();
            }
        }
        Some(_) => drop(found.insert(path.clone())),
    }
}

pub fn at<'o>(object: &'o Json, path: &[String]) -> Option<&'o Json> {
    path.iter().try_fold(object, |value, name| value.get(name))
}

fn set(object: &mut Json, path: &[String], value: Json) {
    let Some((name, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    set(&mut object[name.as_str()], rest, value);
}

/// Removes a field, and the objects that are empty without it.
fn remove(object: &mut Json, path: &[String]) {
    let (Some((name, rest)), Json::Object(members)) = (path.split_first(), object) else { return };
    if let Some(member) = members.get_mut(name).filter(|_| !rest.is_empty()) {
        remove(member, rest);
        if member.as_object().is_some_and(|members| !members.is_empty()) || !member.is_object() {
            return;
        }
    }
    members.remove(name);
}

fn overlaps(one: &[String], other: &[String]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// `live` after `manager` has applied `applied`, and its owners.
pub fn apply(
    live: &Json,
    owners: &Owners,
    applied: &Json,
    manager: &Manager,
    is_forced: bool,
) -> Result<(Json, Owners), Vec<Conflict>> {
    let mine = fields(applied);
    let mut owners = owners.clone();
    let mut conflicts = BTreeSet::new();
    for (other, theirs) in owners.iter_mut().filter(|(other, _)| *other != manager) {
        for field in mine.iter().filter(|field| at(live, field) != at(applied, field)) {
            if theirs.iter().any(|their| overlaps(their, field)) {
                conflicts.insert(Conflict { manager: other.clone(), field: field.clone() });
                theirs.retain(|their| !overlaps(their, field));
            }
        }
    }
    if !conflicts.is_empty() && !is_forced {
        return Err(conflicts.into_iter().collect());
    }
    let mut object = live.clone();
    let previous = owners.remove(manager).unwrap_or_default();
    for field in previous.difference(&mine) {
        if !owners.values().flatten().any(|other| overlaps(other, field)) {
            remove(&mut object, field);
        }
    }
    for field in &mine {
        set(&mut object, field, at(applied, field).cloned().unwrap_or_default());
    }
    owners.insert(manager.clone(), mine);
    owners.retain(|_, fields| !fields.is_empty());
    Ok((object, owners))
}

/// The owners after `manager` has replaced `live` by `object`.
pub fn updated(live: &Json, owners: &Owners, object: &Json, manager: &Manager) -> Owners {
    let after = fields(object);
    let mut owners = owners.clone();
    let changed: BTreeSet<Path> =
        after.iter().filter(|field| at(live, field) != at(object, field)).cloned().collect();
    for (other, fields) in &mut owners {
        let is_lost = |field: &Path| other != manager && changed.contains(field);
        fields.retain(|field| after.contains(field) && !is_lost(field));
    }
    owners.entry(manager.clone()).or_default().extend(changed);
    owners.retain(|_, fields| !fields.is_empty());
    owners
}

/// `metadata.managedFields`.
pub fn managed_fields(owners: &Owners, api_version: &str, time: &str) -> Json {
    let entry = |(manager, fields): (&Manager, &BTreeSet<Path>)| {
        let mut tree = json!({});
        for field in fields {
            let path: Path = field.iter().map(|name| format!("f:{name}")).collect();
            set(&mut tree, &path, Json::Object(Map::new()));
        }
        let mut entry = json!({
            "manager": manager.name, "operation": manager.operation, "apiVersion": api_version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": tree,
        });
        if !manager.subresource.is_empty() {
            entry["subresource"] = manager.subresource.into();
        }
        entry
    };
    owners.iter().map(entry).collect()
}

/// The text of a conflict, as Kubernetes has it.
pub fn describe(conflict: &Conflict, api_version: &str, time: &str) -> (String, String) {
    let manager = &conflict.manager;
    let subresource = match manager.subresource {
        "" => String::new(),
        name => format!(" with subresource {name:?}"),
    };
    let using = match manager.operation {
        "Update" => format!(" using {api_version} at {time}"),
        _ => String::new(),
    };
    let field = format!(".{}", conflict.field.join("."));
    (format!("conflict with {:?}{subresource}{using}", manager.name), field)
}
