//! A table as a page of the documentation (`docs/terraform/`).

use std::fmt::Write as _;

use super::{Attribute, Presence, Table, Type};

/// The Markdown page of a table.
#[must_use]
pub fn page(table: &Table) -> String {
    let mut page = format!(
        "# {}\n\n{} `make fix` writes this page from the schema in `provider/src/`.\n",
        title(table),
        table.summary
    );
    let _ = write!(page, "\n```hcl\n{}\n```\n", table.example.trim());
    let presences = [
        ("Required", &[Presence::Required][..]),
        ("Optional", &[Presence::Optional, Presence::OptionalComputed]),
        ("Read-only", &[Presence::Computed]),
    ];
    for (heading, presences) in presences {
        let rows = table.attributes.iter().filter(|attribute| presences.contains(&attribute.presence));
        let rows: String = rows.map(|attribute| row(attribute, "")).collect();
        if !rows.is_empty() {
            let _ = write!(page, "\n## {heading}\n\n| Attribute | Type | |\n|---|---|---|\n{rows}");
        }
    }
    if let Some(attribute) = table.import {
        let _ = write!(
            page,
            "\n## Import\n\nBy `{attribute}`:\n\n```sh\nterraform import {}.example <{attribute}>\n```\n",
            table.name
        );
    }
    if !table.notes.is_empty() {
        let _ = write!(page, "\n## Notes\n\n{}\n", table.notes.trim());
    }
    page
}

fn title(table: &Table) -> String {
    let name = table.name;
    if name == crate::settings::TABLE.name {
        return format!("Provider `{name}`");
    }
    let kind = if table.import.is_some() { "Resource" } else { "Ephemeral resource" };
    format!("{kind} `{name}`")
}

/// The row of an attribute, and those of the attributes in it.
fn row(attribute: &Attribute, within: &str) -> String {
    let name = format!("{within}{}", attribute.name);
    let marks = [
        (attribute.replaces, " A change replaces the resource."),
        (attribute.is_sensitive, " Sensitive."),
        (attribute.is_write_only, " Write-only: never stored; Terraform 1.11 or later."),
    ];
    let marks: String = marks.iter().filter(|(is_set, _)| *is_set).map(|(_, mark)| *mark).collect();
    let mut rows = format!("| `{name}` | {} | {}{marks} |\n", attribute.kind.words(), attribute.summary);
    if let Type::Object(attributes) | Type::Objects(attributes) = attribute.kind {
        rows.extend(attributes.iter().map(|attribute| row(attribute, &format!("{name}."))));
    }
    rows
}
