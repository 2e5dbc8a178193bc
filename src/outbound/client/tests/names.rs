//! Names that lead where this node may not call: no connection arrives there.

use std::collections::HashMap;
use std::sync::Mutex;

use super::*;
use crate::json;

/// What a name leads to, one answer after the other; the last one stays.
#[derive(Clone, Default)]
struct Names {
    answers: Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Names {
    fn leads(&self, name: &str, answers: &[&[&str]]) {
        let addresses = |texts: &&[&str]| texts.iter().map(|text| text.parse().expect("address")).collect();
        let mut answers: Vec<_> = answers.iter().map(addresses).collect();
        answers.reverse();
        self.answers.lock().expect("lock").insert(name.to_owned(), answers);
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().expect("lock"))
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
        let answer = match answers.get_mut(&name) {
            Some(answers) if answers.len() > 1 => Ok(answers.pop().expect("one")),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        self.asked.lock().expect("lock").push(name);
        Box::pin(future::ready(answer))
    }
}

/// What comes of a call that reaches `listener`, which hangs up.
async fn hung_up_on<T>(listener: &TcpListener, call: impl Future<Output = T>) -> T {
    let hang_up = async { drop(listener.accept().await.expect("accepted")) };
    let both = async { tokio::join!(call, hang_up) };
    tokio::time::timeout(AMPLE, both).await.expect("a connection").0
}

// 127.0.0.2 stands for a public address, which is one that may be called; 127.0.0.3 for one that may not.
const CALLED: &[&str] = &["127.0.0.2/32"];

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_not_connected_to() {
    let ([forbidden], port) = listeners(["127.0.0.3"]);
    let names = Names::default();
    names.leads("receiver.example", &[&["127.0.0.3"]]);
    let address = format!("https://receiver.example:{port}/");
    for client in [names.client(&[]), names.client(CALLED)] {
        assert_eq!(push(&client, &address).await, Err(Error::AddressRefused(Kind::Loopback)));
        assert_eq!(client.fetch(&address).await, Err(Error::AddressRefused(Kind::Loopback)));
    }
    assert_eq!(arrived(&forbidden), 0);
    assert_eq!(names.asked().len(), 4);
}

#[tokio::test]
async fn of_a_name_that_leads_to_both_only_the_address_that_may_be_called_is() {
    for addresses in [["127.0.0.2", "127.0.0.3"], ["127.0.0.3", "127.0.0.2"]] {
        let ([called, forbidden], port) = listeners(["127.0.0.2", "127.0.0.3"]);
        let names = Names::default();
        names.leads("receiver.example", &[&addresses]);
        let (client, address) = (names.client(CALLED), format!("https://receiver.example:{port}/"));
        let called = TcpListener::from_std(called).expect("listener");
        assert_eq!(hung_up_on(&called, push(&client, &address)).await, Err(Error::Unreachable));
        // Nor when that one takes no connection any more.
        drop(called);
        assert_eq!(push(&client, &address).await, Err(Error::Unreachable));
        assert_eq!(arrived(&forbidden), 0);
    }
}

#[tokio::test]
async fn a_name_that_changes_between_two_looks_is_never_looked_at_twice() {
    let ([called, forbidden], port) = listeners(["127.0.0.2", "127.0.0.3"]);
    let names = Names::default();
    names.leads("receiver.example", &[&["127.0.0.2"], &["127.0.0.3"], &["127.0.0.2"], &["127.0.0.3"]]);
    let (client, address) = (names.client(CALLED), format!("https://receiver.example:{port}/"));
    let called = TcpListener::from_std(called).expect("listener");
    for _ in 0..2 {
        // One look for one connection: a second one would have led elsewhere.
        assert_eq!(hung_up_on(&called, push(&client, &address)).await, Err(Error::Unreachable));
        assert_eq!(names.asked(), ["receiver.example"]);
        assert_eq!(push(&client, &address).await, Err(Error::AddressRefused(Kind::Loopback)));
        assert_eq!(names.asked(), ["receiver.example"]);
    }
    assert_eq!(arrived(&forbidden), 0);
}

#[tokio::test]
async fn localhost_is_this_machine_without_being_asked_for() {
    let server = answering(ResponseTemplate::new(202)).await;
    let names = Names::default();
    // Whoever answers for the name does not matter.
    names.leads("localhost", &[&["127.0.0.2"]]);
    let address = format!("http://localhost:{}/", server.address().port());
    let answer = push(&names.client(&[]), &address).await.expect("answer");
    assert_eq!((answer.status, names.asked().len()), (202, 0));
}

#[tokio::test]
async fn who_is_asked_for_is_who_was_read_in_the_url() {
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
        // An address is not asked for, and nothing of this machine's network is called from a test.
        let Some(host) = host.filter(|host| host != "localhost") else { continue };
        assert_eq!(push(&client, &row.url).await, Err(Error::Unreachable), "{}", row.url);
        assert_eq!(names.asked(), [host], "{}", row.url);
        tried += 1;
    }
    assert!(tried >= 15, "{tried}");
}

#[tokio::test]
async fn a_url_of_another_guard_is_judged_again() {
    let ([listener], port) = listeners(["127.0.0.1"]);
    let open = Guard::new(Rules::default()).push_url(&format!("http://127.0.0.1:{port}/")).expect("url");
    for strict in [
        Rules { allow_loopback_push: false, ..Rules::default() },
        Rules { own_ports: [port].into(), ..Rules::default() },
    ] {
        let client = Client::new(patient(), Guard::new(strict)).expect("client");
        let place = client.push_place(open.clone(), "somebody").await.expect("place");
        let outcome = client.push(place, String::new()).await;
        assert!(matches!(outcome, Err(Error::Url(_))), "{outcome:?}");
    }
    assert_eq!(arrived(&listener), 0);
}

#[tokio::test]
async fn a_url_that_may_not_be_fetched_is_refused_before_anything_is_sent() {
    let ([listener], port) = listeners(["127.0.0.1"]);
    let client = Client::new(patient(), Guard::new(Rules::default())).expect("client");
    for address in [format!("http://127.0.0.1:{port}/"), format!("https://localhost:{port}/")] {
        let outcome = client.fetch(&address).await;
        assert!(matches!(outcome, Err(Error::Url(_))), "{outcome:?}");
    }
    assert_eq!(arrived(&listener), 0);
}

#[tokio::test]
async fn what_a_caller_reads_names_no_address() {
    let names = Names::default();
    names.leads("receiver.example", &[&["10.11.12.13"]]);
    let refused = push(&names.client(&[]), "https://receiver.example/").await.expect_err("refused");
    assert_eq!(refused.to_string(), "address of the host is not one that this node may call");
}

/// Every lookup is taken by others.
struct Full;

impl Lookup for Full {
    fn addresses(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(future::ready(Err(io::Error::other(NoLookup))))
    }
}

#[tokio::test]
async fn a_name_that_could_not_be_asked_for_is_not_said_to_be_unreachable() {
    let full = || -> Arc<dyn Lookup> { Arc::new(Full) };
    let client = Client::with_lookups(patient(), Guard::new(rules()), full).expect("client");
    assert_eq!(push(&client, "https://receiver.example/").await, Err(Error::NoPlace));
}
