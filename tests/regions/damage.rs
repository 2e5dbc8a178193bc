//! A row of the copy of a peer's ledger that is deleted from the database of a stopped node.

use rocksdb::{DB, IteratorMode, Options};

use super::copies::{assert_is_copy, command};
use super::tokens::{TOOL, agent, exchange, granted, set_policies, until_exchange, verify};
use super::*;

/// Deletes the first row of a table.
fn lose_a_row(fabric: &Fabric, table: &str) {
    let state = fabric.data().join("state");
    let generation = fs::read_to_string(state.join("CURRENT")).expect("a generation");
    let directory = state.join(generation.trim());
    let options = Options::default();
    let tables = DB::list_cf(&options, &directory).expect("tables");
    let database = DB::open_cf(&options, &directory, tables).expect("a database");
    let rows = database.cf_handle(table).expect("a table");
    let first = database.iterator_cf(rows, IteratorMode::Start).next().expect("a row").expect("readable");
    database.delete_cf(rows, first.0).expect("deleted");
}

/// Without the row, the token of the revoked agent would be accepted after the restart.
#[tokio::test]
async fn lost_row_of_a_copy_is_found_and_repaired() {
    let [one, other] = ports::free::<2>();
    let (mut eu, mut us) = (Fabric::new("eu", one), Fabric::new("us", other));
    set_policies(&mut eu);
    set_policies(&mut us);
    eu.add_peer(&PeerSection { name: "us", of: &us, more: "serve = true" });
    let more = "accept = true\nas = [\"subject\"]\ncapabilities = [\"db.read\"]";
    us.add_peer(&PeerSection { name: "eu", of: &eu, more });
    eu.start().await;
    us.start().await;
    us.until_peer("eu", "live", 0).await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "required_capabilities": ["db.read"]});
    assert_eq!(us.call(Method::POST, "/v1/tools", Some(&tool)).await.0, 201);
    let (id, identity) = agent(&eu).await;
    let revoked = granted(&eu, &identity, &us.issuer()).await;
    let good = granted(&eu, &agent(&eu).await.1, &us.issuer()).await;
    until_exchange(&us, &revoked, 200).await;
    let at_tool = granted(&us, &good, TOOL).await;
    let own = granted(&us, &agent(&us).await.1, TOOL).await;
    assert_eq!(eu.call(Method::POST, "/v1/revocations", Some(&json!({"agent": id}))).await.0, 202);
    until_exchange(&us, &revoked, 400).await;

    us.stop().await;
    lose_a_row(&us, "peer_ledger");
    us.start().await;
    let held = us.until_peer("eu", "held", 1).await;
    assert_eq!(held["fault"], "copy_damaged", "{held}");
    for token in [&revoked, &good] {
        let (status, answer) = exchange(&us, token, TOOL).await;
        assert_eq!(status, 503, "{answer}");
    }
    assert_eq!((verify(&us, &at_tool).await.0, verify(&us, &own).await.0), (503, 200));
    let (is_done, refused) = command(&us, &["approve", "eu"]);
    assert!(!is_done && refused.contains("no fault"), "{refused}");

    let (is_done, printed) = command(&us, &["repair", "eu"]);
    assert!(is_done && printed.starts_with("eu: repair is done"), "{printed}");
    us.until_peer("eu", "live", 1).await;
    assert_is_copy(&us, &eu).await;
    until_exchange(&us, &good, 200).await;
    assert_eq!((exchange(&us, &revoked, TOOL).await.0, verify(&us, &at_tool).await.0), (400, 200));
}
