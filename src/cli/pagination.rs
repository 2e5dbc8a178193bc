//! Paginated lists, as a table or as JSON.

use std::io::{self, Write};

use serde_json::Value;
use trust_fabric_client::{self as client, NodeClient};

use super::Error;
use super::endpoint::Call;
use super::output;
use crate::limits;

/// Writes the first `most` rows of the list at `path`, and reports if there are more. `columns` are headings and field
/// names.
pub(super) fn list(
    call: &Call,
    path: &[&str],
    most: usize,
    columns: &[(&str, &str)],
    out: &mut dyn Write,
) -> Result<(), Error> {
    list_with(call, (path, &[]), most, columns, out)
}

/// The same with query parameters.
pub(super) fn list_with(
    call: &Call,
    (path, query): (&[&str], &[(&str, &str)]),
    most: usize,
    columns: &[(&str, &str)],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let client = call.server.client()?;
    let most = most.min(client::limits::LIST_ROWS_MAX);
    let (rows, is_more) = super::wait_for(read(&client, (path, query), most))?;
    output::list(out, call.output, &rows.into(), columns)?;
    if is_more {
        writeln!(io::stderr(), "there are more: raise --limit")?;
    }
    Ok(())
}

/// At most `most` rows, and whether there are more.
async fn read(
    client: &NodeClient,
    (path, parameters): (&[&str], &[(&str, &str)]),
    most: usize,
) -> Result<(Vec<Value>, bool), Error> {
    let (mut rows, mut cursor) = (Vec::new(), None::<String>);
    while rows.len() < most {
        let limit = (most - rows.len()).min(limits::PAGE_ROWS_MAX).to_string();
        let mut query = [parameters, &[("limit", limit.as_str())]].concat();
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let (page, next) = client.page(path, &query).await?;
        rows.extend(page);
        if next.is_none() {
            return Ok((rows, false));
        }
        cursor = next;
    }
    Ok((rows, true))
}
