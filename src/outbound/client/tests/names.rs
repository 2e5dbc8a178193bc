//! Names that resolve to refused addresses: no connection arrives there.

use std::collections::HashMap;
use std::sync::Mutex;

use super::*;
use crate::json;

/// The addresses of a name, one answer after the other; the last one repeats.
#[derive(Clone, Default)]
struct Names {
    answers: Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Names {
    fn leads(&self, name: &str, answers: &[&[&str]]) {
        let addresses = |texts: &&[&str]| texts.iter().map(|text| text.parse().expect("address")).collect();
        let mut answers: Vec<_> = answers.iter().map(addresses).collect();
        answers.reverse();
        self.answers.lock().expect("lock").insert(name.to_owned(), answers);
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("lock"))
    }

    fn client(&self, allowed: &[&str]) -> Client {
        let allowed_networks = allowed.iter().map(|text| text.parse().expect("network")).collect();
        let guard = Guard::new(Rules { allowed_networks, ..rules() });
        Client::with_lookups(patient(), guard, || Arc::new(self.clone())).expect("client")
    }
}

impl Lookup for Names {
    fn addresses(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let mut answers = self.answers.lock().expect("lock");
        let response = match answers.get_mut(&name) {
            Some(answers) if answers.len() > 1 => Ok(answers.pop().expect("one")),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        self.requests.lock().expect("lock").push(name);
        Box::pin(future::ready(response))
    }
}

/// The result of a call that reaches `listener`, which closes the connection.
async fn hung_up_on<T>(listener: &TcpListener, call: impl Future<Output = T>) -> T {
    let hang_up = async { drop(listener.accept().await.expect("accepted")) };
    let both = async { tokio::join!(call, hang_up) };
    tokio::time::timeout(AMPLE, both).await.expect("a connection").0
}

// 127.0.0.2 stands for an allowed public address, 127.0.0.3 for a refused one.
const CALLED: &[&str] = &["127.0.0.2/32"];

#[tokio::test]
async fn name_with_a_private_address_is_not_called() {
    let ([forbidden], port) = listeners(["127.0.0.3"]);
    let names = Names::default();
    names.leads("receiver.example", &[&["127.0.0.3"]]);
    let address = format!("https://receiver.example:{port}/");
    for client in [names.client(&[]), names.client(CALLED)] {
        assert_eq!(push(&client, &address).await, Err(Error::AddressRefused(Kind::Loopback)));
        assert_eq!(client.fetch(&address).await, Err(Error::AddressRefused(Kind::Loopback)));
    }
    assert_eq!(arrived(&forbidden), 0);
    assert_eq!(names.requests().len(), 4);
}

#[tokio::test]
async fn only_allowed_addresses_of_a_name_are_called() {
    for addresses in [["127.0.0.2", "127.0.0.3"], ["127.0.0.3", "127.0.0.2"]] {
        let ([called, forbidden], port) = listeners(["127.0.0.2", "127.0.0.3"]);
        let names = Names::default();
        names.leads("receiver.example", &[&addresses]);
        let (client, address) = (names.client(CALLED), format!("https://receiver.example:{port}/"));
        let called = TcpListener::from_std(called).expect("listener");
        assert_eq!(hung_up_on(&called, push(&client, &address)).await, Err(Error::Unreachable));
        // Nor after the allowed one refuses connections.
        drop(called);
        assert_eq!(push(&client, &address).await, Err(Error::Unreachable));
        assert_eq!(arrived(&forbidden), 0);
    }
}

#[tokio::test]
async fn name_is_resolved_once_per_connection() {
    let ([called, forbidden], port) = listeners(["127.0.0.2", "127.0.0.3"]);
    let names = Names::default();
    names.leads("receiver.example", &[&["127.0.0.2"], &["127.0.0.3"], &["127.0.0.2"], &["127.0.0.3"]]);
    let (client, address) = (names.client(CALLED), format!("https://receiver.example:{port}/"));
    let called = TcpListener::from_std(called).expect("listener");
    for _ in 0..2 {
        // A second lookup would have returned the refused address.
        assert_eq!(hung_up_on(&called, push(&client, &address)).await, Err(Error::Unreachable));
        assert_eq!(names.requests(), ["receiver.example"]);
        assert_eq!(push(&client, &address).await, Err(Error::AddressRefused(Kind::Loopback)));
        assert_eq!(names.requests(), ["receiver.example"]);
    }
    assert_eq!(arrived(&forbidden), 0);
}

#[tokio::test]
async fn localhost_is_loopback_without_a_lookup() {
    let server = answering(ResponseTemplate::new(202)).await;
    let names = Names::default();
    // The resolver is not consulted.
    names.leads("localhost", &[&["127.0.0.2"]]);
    let address = format!("http://localhost:{}/", server.address().port());
    let response = push(&names.client(&[]), &address).await.expect("answer");
    assert_eq!((response.status, names.requests().len()), (202, 0));
}

#[tokio::test]
async fn resolved_name_is_the_host_of_the_url() {
    #[derive(serde::Deserialize)]
    struct Row {
        url: String,
        push: String,
    }
    let table = include_bytes!("../../../../tests/vectors/outbound/urls.json");
    let rows: Vec<Row> = json::from_value(json::parse(table).expect("JSON")).expect("table");
    let (names, mut tried) = (Names::default(), 0);
    let client = names.client(&[]);
    for row in rows.iter().filter(|row| row.push == "ok" && row.url.starts_with("https://")) {
        let host = Url::parse(&row.url).expect("url").domain().map(str::to_owned);
        // Literal addresses are not resolved, and tests call nothing in the network of this host.
        let Some(host) = host.filter(|host| host != "localhost") else { continue };
        assert_eq!(push(&client, &row.url).await, Err(Error::Unreachable), "{}", row.url);
        assert_eq!(names.requests(), [host], "{}", row.url);
        tried += 1;
    }
    assert!(tried >= 15, "{tried}");
}

#[tokio::test]
async fn url_of_another_guard_is_checked_again() {
    let ([listener], port) = listeners(["127.0.0.1"]);
    let open = Guard::new(Rules::default()).push_url(&format!("http://127.0.0.1:{port}/")).expect("url");
    for strict in [
        Rules { allow_loopback_push: false, ..Rules::default() },
        Rules { own_ports: [port].into(), ..Rules::default() },
    ] {
        let client = Client::new(patient(), Guard::new(strict)).expect("client");
        let permit = client.push_permit(open.clone(), "somebody").await.expect("permit");
        let outcome = client.push(permit, String::new()).await;
        assert!(matches!(outcome, Err(Error::Url(_))), "{outcome:?}");
    }
    assert_eq!(arrived(&listener), 0);
}

#[tokio::test]
async fn refused_url_is_not_fetched() {
    let ([listener], port) = listeners(["127.0.0.1"]);
    let client = Client::new(patient(), Guard::new(Rules::default())).expect("client");
    for address in [format!("http://127.0.0.1:{port}/"), format!("https://localhost:{port}/")] {
        let outcome = client.fetch(&address).await;
        assert!(matches!(outcome, Err(Error::Url(_))), "{outcome:?}");
    }
    assert_eq!(arrived(&listener), 0);
}

#[tokio::test]
async fn error_for_callers_names_no_address() {
    let names = Names::default();
    names.leads("receiver.example", &[&["10.11.12.13"]]);
    let refused = push(&names.client(&[]), "https://receiver.example/").await.expect_err("refused");
    assert_eq!(refused.to_string(), "host resolves to no address that this node may call");
}

/// A resolver at its lookup limit.
struct Full;

impl Lookup for Full {
    fn addresses(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(future::ready(Err(io::Error::other(LookupLimitReached))))
    }
}

#[tokio::test]
async fn lookup_limit_is_not_reported_as_unreachable() {
    let full = || -> Arc<dyn Lookup> { Arc::new(Full) };
    let client = Client::with_lookups(patient(), Guard::new(rules()), full).expect("client");
    assert_eq!(push(&client, "https://receiver.example/").await, Err(Error::LimitReached));
}
