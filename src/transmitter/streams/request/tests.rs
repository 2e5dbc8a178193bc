//! What may be asked of a stream, in both shapes, and every rule broken once.

use proptest::prelude::*;

use super::*;
use crate::clock::Timestamp;
use crate::state::{Added, StreamStatus};

const ISSUER: &str = "https://fabric.example";
const OWNER: &str = "spiffe://trust.example/receiver";
const ID: &str = "0123456789abcdef0123456789abcdef";
const POLL_URL: &str = "https://fabric.example:8694/v1/signals/poll/0123456789abcdef0123456789abcdef";
const PUSH_URL: &str = "https://receiver.example/events";
const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const CHANGED: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";
const UNKNOWN: &str = "https://events.example/something-else";

/// Here `https` is the whole rule.
fn push_url(url: &str) -> Result<(), String> {
    if url.starts_with("https://") { Ok(()) } else { Err("must be https".to_owned()) }
}

fn terms() -> Terms<'static> {
    Terms { issuer: ISSUER, poll_url: POLL_URL, push_url: &push_url }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "every member may be absent")]
fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// The shape of the specification.
fn flat() -> Members {
    Members {
        iss: some(ISSUER),
        aud: some("https://receiver.example"),
        events_requested: Some(texts(&[REVOKED])),
        delivery_method: some("push"),
        endpoint_url: some(PUSH_URL),
        ..Members::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "every member may be absent")]
fn delivery(method: &str, endpoint_url: Option<&str>) -> Option<Delivery> {
    Some(Delivery {
        method: some(method),
        endpoint_url: endpoint_url.map(str::to_owned),
        authorization_header: None,
    })
}

/// The shape of SSF.
fn ssf() -> Members {
    Members {
        events_requested: Some(texts(&[REVOKED])),
        delivery: delivery(PUSH, Some(PUSH_URL)),
        ..Members::default()
    }
}

fn made(members: Members) -> Result<StreamConfig, String> {
    create(members, &terms(), OWNER, ID.to_owned()).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(members: Members, text: &str) {
    let shown = format!("{members:?}");
    let said = made(members).expect_err(text);
    assert!(said.starts_with(text), "{shown}: {said}");
}

/// A stream that was made of these members.
fn stream(members: Members) -> Stream {
    let at = Timestamp::from_secs(0);
    Stream {
        config: made(members).expect("good"),
        status: StreamStatus::Enabled,
        reason: None,
        owes_update: false,
        created_at: at,
        updated_at: at,
        removed_subjects: Vec::new(),
        added: Added::default(),
        revision: 1,
        changes: 1,
        filter: 1,
    }
}

fn changed(members: Members, extent: Extent, current: &Stream) -> Result<StreamConfig, String> {
    change(members, extent, current, &terms()).map_err(|error| error.to_string())
}

fn patched(members: Members, current: &Stream) -> Result<StreamConfig, String> {
    changed(members, Extent::Part, current)
}

#[track_caller]
fn not_changed(members: Members, extent: Extent, current: &Stream, text: &str) {
    let shown = format!("{members:?}");
    let said = changed(members, extent, current).expect_err(text);
    assert!(said.starts_with(text), "{extent:?} {shown}: {said}");
}

/// What is answered of a stream, as a receiver sends it back.
fn echoed(stream: &Stream) -> Members {
    let config = &stream.config;
    let method = Method::of(config);
    let url = config.endpoint_url.clone().unwrap_or_else(|| POLL_URL.to_owned());
    Members {
        stream_id: some(&config.stream_id),
        iss: some(ISSUER),
        aud: some(&config.aud),
        events_supported: Some(texts(&EVENTS_SUPPORTED)),
        events_requested: Some(config.events_requested.clone()),
        events_delivered: Some(config.events_delivered.clone()),
        status: some(stream.status.as_str()),
        reason: stream.reason.clone(),
        delivery_method: some(method.as_str()),
        endpoint_url: Some(url.clone()),
        delivery: delivery(method.urn(), Some(&url)),
        min_verification_interval: Some(limits::VERIFICATION_INTERVAL_MIN.as_secs()),
        description: config.description.clone(),
    }
}

#[test]
fn both_shapes_ask_for_the_same_stream() {
    let expected = StreamConfig {
        stream_id: ID.to_owned(),
        owner: OWNER.to_owned(),
        aud: "https://receiver.example".to_owned(),
        events_requested: texts(&[REVOKED]),
        events_delivered: texts(&[REVOKED]),
        endpoint_url: some(PUSH_URL),
        description: None,
    };
    assert_eq!(made(flat()).expect("flat"), expected);
    let aud = expected.aud.clone();
    assert_eq!(made(Members { aud: Some(aud), ..ssf() }).expect("SSF"), expected);
    let both = Members { delivery: ssf().delivery, ..flat() };
    assert_eq!(made(both).expect("both"), expected);
    // One says the method, the other the address.
    let halves = Members { delivery: delivery(PUSH, None), delivery_method: None, ..flat() };
    assert_eq!(made(halves).expect("halves"), expected);
}

#[test]
fn without_delivery_a_stream_is_polled_and_its_audience_is_the_caller() {
    let members = Members { delivery: None, ..ssf() };
    let config = made(members.clone()).expect("good");
    assert_eq!((config.aud.as_str(), config.endpoint_url), (OWNER, None));
    let polled = Members { delivery: delivery(POLL, None), ..ssf() };
    assert_eq!(made(polled).expect("good").endpoint_url, None);
    let flat = Members { delivery_method: some("poll"), endpoint_url: None, ..flat() };
    assert_eq!(made(flat).expect("good").endpoint_url, None);
    let nobody = create(members, &terms(), "", ID.to_owned()).expect_err("refused").to_string();
    assert_eq!(nobody, "aud: is required: nobody has said who calls");
}

#[test]
fn in_the_flat_shape_every_required_member_is_asked_for() {
    for (name, members) in [
        ("iss", Members { iss: None, ..flat() }),
        ("aud", Members { aud: None, ..flat() }),
        ("events_requested", Members { events_requested: None, ..flat() }),
        ("delivery_method", Members { delivery_method: None, ..flat() }),
        ("delivery_method", Members { delivery_method: None, endpoint_url: None, ..flat() }),
    ] {
        refused(members, &format!("{name}: is required where there is no delivery"));
    }
    refused(Members { events_requested: None, ..ssf() }, "events_requested: is required");
    refused(Members::default(), "events_requested: is required");
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    let both = Members { delivery: ssf().delivery, ..flat() };
    refused(
        Members { delivery_method: some("poll"), ..both.clone() },
        "delivery_method: contradicts delivery.method",
    );
    refused(
        Members { delivery: delivery(POLL, Some(PUSH_URL)), ..both.clone() },
        "delivery_method: contradicts delivery.method",
    );
    for other in
        ["https://receiver.example/events/", "https://receiver.example/Events", "https://other.example/"]
    {
        let members = Members { endpoint_url: some(other), ..both.clone() };
        refused(members, "endpoint_url: contradicts delivery.endpoint_url");
    }
}

#[test]
fn a_push_needs_an_address_that_may_be_pushed_to_and_a_poll_has_none() {
    refused(Members { endpoint_url: None, ..flat() }, "endpoint_url: is required for push");
    refused(
        Members { delivery: delivery(PUSH, None), ..ssf() },
        "delivery.endpoint_url: is required for push",
    );
    refused(Members { endpoint_url: some("http://r.example"), ..flat() }, "endpoint_url: must be https");
    refused(Members { endpoint_url: some(""), ..flat() }, "endpoint_url: must be https");
    refused(
        Members { delivery: delivery(PUSH, Some("http://r.example")), ..ssf() },
        "delivery.endpoint_url: must be https",
    );
    let says = "is the transmitter's to say for poll";
    refused(Members { delivery_method: some("poll"), ..flat() }, &format!("endpoint_url: {says}"));
    for url in [PUSH_URL, POLL_URL] {
        refused(
            Members { delivery: delivery(POLL, Some(url)), ..ssf() },
            &format!("delivery.endpoint_url: {says}"),
        );
    }
    for method in ["Push", "", "urn:ietf:rfc:8935"] {
        let members = Members { delivery_method: some(method), ..flat() };
        refused(members, "delivery_method: must be push or poll");
    }
    for method in
        ["push", "", "urn:ietf:rfc:8417", "https://schemas.openid.net/secevent/risc/delivery-method/push"]
    {
        refused(
            Members { delivery: delivery(method, Some(PUSH_URL)), ..ssf() },
            "delivery.method: must be urn:",
        );
    }
    let nothing = Some(Delivery { endpoint_url: some(PUSH_URL), ..Delivery::default() });
    refused(Members { delivery: nothing, ..ssf() }, "delivery.method: is required");
}

#[test]
fn no_secret_of_a_receiver_is_kept() {
    let secret = |url| {
        let delivery =
            Delivery { method: some(PUSH), endpoint_url: url, authorization_header: some("Bearer x") };
        Members { delivery: Some(delivery), ..ssf() }
    };
    let text = "delivery.authorization_header: is not supported: this fabric keeps no secret of a receiver; \
                it signs what it pushes";
    refused(secret(some(PUSH_URL)), text);
    refused(secret(None), text);
    let current = stream(ssf());
    not_changed(secret(some(PUSH_URL)), Extent::Part, &current, text);
    not_changed(secret(some(PUSH_URL)), Extent::Whole, &current, text);
}

#[test]
fn an_event_type_is_an_absolute_uri_of_a_limited_length() {
    let with = |events: &[&str]| Members { events_requested: Some(texts(events)), ..ssf() };
    refused(with(&[]), "events_requested: must be 1 to 64 event types");
    let most = vec![REVOKED; limits::STREAM_EVENTS_REQUESTED_MAX];
    assert_eq!(made(with(&most)).expect("good").events_delivered, [REVOKED]);
    refused(with(&[most, vec![REVOKED]].concat()), "events_requested: must be 1 to 64 event types");
    for wrong in [
        "",
        "session-revoked",
        "/caep/x",
        "//a.example/x",
        "https://a.example/a b",
        "https://a.example/\u{e9}",
    ] {
        refused(with(&[REVOKED, wrong]), "events_requested[1]: must be an absolute URI");
    }
    let longest = format!("urn:x:{}", "a".repeat(limits::EVENT_TYPE_BYTES_MAX - 6));
    assert!(made(with(&[REVOKED, &longest])).is_ok());
    refused(with(&[REVOKED, &format!("{longest}a")]), "events_requested[1]: must be an absolute URI");
}

#[test]
fn delivered_is_what_is_requested_and_supported_each_once_and_in_order() {
    let with = |events: &[&str]| Members { events_requested: Some(texts(events)), ..ssf() };
    let config = made(with(&[UNKNOWN, CHANGED, REVOKED, CHANGED])).expect("good");
    assert_eq!(config.events_delivered, [CHANGED, REVOKED]);
    assert_eq!(config.events_requested, [UNKNOWN, CHANGED, REVOKED, CHANGED]);
    refused(with(&[UNKNOWN]), "events_requested: none of these event types is supported");
    // Another spelling is another type.
    refused(with(&[&REVOKED.to_uppercase()]), "events_requested: none of these");
    refused(with(&[&format!("{REVOKED}/")]), "events_requested: none of these");
}

#[test]
fn a_receiver_may_want_less_to_be_delivered_and_never_more() {
    let with = |delivered: &[&str]| Members {
        events_requested: Some(texts(&[CHANGED, REVOKED, UNKNOWN])),
        events_delivered: Some(texts(delivered)),
        ..flat()
    };
    assert_eq!(made(with(&[REVOKED, REVOKED])).expect("good").events_delivered, [REVOKED]);
    assert_eq!(made(with(&[REVOKED, CHANGED])).expect("good").events_delivered, [CHANGED, REVOKED]);
    refused(with(&[]), "events_delivered: must not be empty");
    refused(with(&[REVOKED, UNKNOWN]), "events_delivered[1]: must be one of events_requested");
    let other = Members { events_requested: Some(texts(&[CHANGED])), ..with(&[REVOKED]) };
    refused(other, "events_delivered[0]: must be one of events_requested");
}

#[test]
fn what_is_the_transmitters_to_say_is_not_said_by_who_makes_a_stream() {
    for (name, members) in [
        ("stream_id", Members { stream_id: some(ID), ..flat() }),
        ("events_supported", Members { events_supported: Some(texts(&EVENTS_SUPPORTED)), ..flat() }),
        ("status", Members { status: some("enabled"), ..flat() }),
        ("reason", Members { reason: some("r"), ..flat() }),
        ("min_verification_interval", Members { min_verification_interval: Some(60), ..ssf() }),
    ] {
        refused(members, &format!("{name}: is the transmitter's to say"));
    }
    for iss in ["", "https://fabric.example/", "https://Fabric.example", "https://other.example"] {
        refused(
            Members { iss: some(iss), ..ssf() },
            "iss: must be this fabric's own: https://fabric.example",
        );
        assert_eq!(made(Members { iss: some(iss), ..flat() }), made(flat()), "{iss}");
        let both = Members { iss: some(iss), delivery: delivery(PUSH, Some(PUSH_URL)), ..flat() };
        refused(both, "iss: must be this fabric's own");
    }
}

#[test]
fn an_audience_and_a_description_are_as_long_as_their_limits_and_no_longer() {
    let audience = "a".repeat(limits::URI_BYTES_MAX);
    assert_eq!(made(Members { aud: Some(audience.clone()), ..flat() }).expect("good").aud, audience);
    let text = "d".repeat(limits::STREAM_DESCRIPTION_BYTES_MAX);
    let described = made(Members { description: Some(text.clone()), ..ssf() }).expect("good");
    assert_eq!(described.description, Some(text.clone()));
    for wrong in [String::new(), format!("{audience}a"), "a\nb".to_owned()] {
        refused(Members { aud: Some(wrong), ..flat() }, "aud: must be 1 to 2048 bytes");
    }
    for wrong in [String::new(), format!("{text}d"), "a\u{7}".to_owned()] {
        refused(Members { description: Some(wrong.clone()), ..ssf() }, "description: must be 1 to 256 bytes");
        let members = Members { description: Some(wrong), ..Members::default() };
        not_changed(members, Extent::Part, &stream(ssf()), "description: must be 1 to 256 bytes");
    }
}

#[test]
fn what_patch_does_not_state_stays_and_what_put_does_not_state_is_gone() {
    let current = stream(Members { description: some("mine"), ..ssf() });
    assert_eq!(patched(Members::default(), &current).expect("good"), current.config);
    let renamed = patched(Members { description: some("yours"), ..Members::default() }, &current);
    assert_eq!(renamed.expect("good"), StreamConfig { description: some("yours"), ..current.config.clone() });
    let events = Some(texts(&[CHANGED, UNKNOWN]));
    let other = patched(Members { events_requested: events.clone(), ..Members::default() }, &current);
    let other = other.expect("good");
    assert_eq!((other.events_delivered, other.endpoint_url), (texts(&[CHANGED]), some(PUSH_URL)));

    let put = changed(Members { events_requested: events, ..Members::default() }, Extent::Whole, &current);
    let put = put.expect("good");
    assert_eq!((put.description, put.endpoint_url), (None, None), "without delivery it is polled");
    assert_eq!(put.aud, current.config.aud);
    not_changed(Members::default(), Extent::Whole, &current, "events_requested: is required");
    let alone = Members { delivery: None, endpoint_url: some(PUSH_URL), ..ssf() };
    not_changed(alone, Extent::Whole, &current, "delivery_method: is required with endpoint_url");
}

#[test]
fn a_delivery_is_changed_in_either_shape() {
    let pushed = stream(ssf());
    let polled = stream(Members { delivery: delivery(POLL, None), ..ssf() });
    let elsewhere = "https://elsewhere.example/events";
    for (members, current, url) in [
        (Members { endpoint_url: some(elsewhere), ..Members::default() }, &pushed, Some(elsewhere)),
        (
            Members { delivery: delivery(PUSH, Some(elsewhere)), ..Members::default() },
            &polled,
            Some(elsewhere),
        ),
        (Members { delivery: delivery(PUSH, None), ..Members::default() }, &pushed, Some(PUSH_URL)),
        (Members { delivery_method: some("push"), ..Members::default() }, &pushed, Some(PUSH_URL)),
        (Members { delivery_method: some("poll"), ..Members::default() }, &pushed, None),
        (Members { delivery: delivery(POLL, Some(POLL_URL)), ..Members::default() }, &polled, None),
        (Members { endpoint_url: some(POLL_URL), ..Members::default() }, &polled, None),
    ] {
        let shown = format!("{members:?}");
        assert_eq!(patched(members, current).expect(&shown).endpoint_url.as_deref(), url, "{shown}");
    }
    let none = Members::default;
    for (members, current, text) in [
        (Members { delivery_method: some("push"), ..none() }, &polled, "endpoint_url: is required for push"),
        (Members { delivery: delivery(PUSH, None), ..none() }, &polled, "delivery.endpoint_url: is required"),
        (Members { endpoint_url: some(PUSH_URL), ..none() }, &polled, "endpoint_url: is the transmitter's"),
        (
            Members { endpoint_url: some("http://r.example"), ..none() },
            &pushed,
            "endpoint_url: must be https",
        ),
        (
            Members { delivery: delivery(POLL, Some(PUSH_URL)), ..none() },
            &pushed,
            "delivery.endpoint_url: is the",
        ),
    ] {
        not_changed(members, Extent::Part, current, text);
    }
}

#[test]
fn what_is_the_transmitters_to_say_must_be_what_it_says() {
    let current = Stream { reason: some("why"), ..stream(ssf()) };
    let none = Members::default;
    for extent in [Extent::Part, Extent::Whole] {
        for (members, text) in [
            (Members { iss: some("https://other.example"), ..none() }, "iss: must be"),
            (Members { aud: some("https://other.example"), ..none() }, "aud: cannot be changed"),
            (Members { events_supported: Some(texts(&[REVOKED])), ..none() }, "events_supported: is the"),
            (Members { min_verification_interval: Some(1), ..none() }, "min_verification_interval: is the"),
            (Members { status: some("paused"), ..none() }, "status: is changed with POST /v1/signals/status"),
            (Members { reason: some("because"), ..none() }, "reason: is changed with POST"),
        ] {
            not_changed(members, extent, &current, text);
        }
        let members = Members { events_requested: Some(texts(&[REVOKED])), ..echoed(&current) };
        let more = Members { events_delivered: Some(texts(&[REVOKED, CHANGED])), ..members };
        not_changed(more, extent, &current, "events_delivered: is the transmitter's to say");
        assert_eq!(changed(echoed(&current), extent, &current).expect("an echo"), current.config);
    }
}

#[test]
fn a_receiver_sends_back_what_was_delivered_before_or_what_will_be() {
    let narrow = stream(Members {
        events_requested: Some(texts(&[REVOKED, CHANGED])),
        events_delivered: Some(texts(&[CHANGED])),
        ..flat()
    });
    // Unchanged: it stays as narrow as it was asked for.
    assert_eq!(changed(echoed(&narrow), Extent::Whole, &narrow).expect("good").events_delivered, [CHANGED]);
    assert_eq!(patched(Members::default(), &narrow).expect("good").events_delivered, [CHANGED]);
    // Another request: the new one is delivered, whichever of the two is sent along.
    for sent in [&[CHANGED][..], &[REVOKED][..]] {
        let members = Members {
            events_requested: Some(texts(&[REVOKED])),
            events_delivered: Some(texts(sent)),
            ..echoed(&narrow)
        };
        assert_eq!(changed(members, Extent::Whole, &narrow).expect("good").events_delivered, [REVOKED]);
    }
    let wider = Members { events_delivered: Some(texts(&[REVOKED, CHANGED])), ..Members::default() };
    not_changed(wider, Extent::Part, &narrow, "events_delivered: is the transmitter's to say");
}

fn any_events() -> impl Strategy<Value = Vec<String>> {
    let supported = prop::sample::select(EVENTS_SUPPORTED.to_vec()).prop_map(str::to_owned);
    let any = prop_oneof![4 => supported.clone(), 1 => "https://x\\.example/[a-z]{1,8}"];
    (prop::collection::vec(any, 0..8), supported).prop_map(|(mut events, one)| {
        events.insert(events.len() / 2, one);
        events
    })
}

proptest! {
    #[test]
    fn whatever_is_asked_for_in_either_shape_comes_back_as_the_same_stream(
        events in any_events(),
        pushes: bool,
        description in prop::option::of("[a-z]{1,20}"),
    ) {
        let url = pushes.then_some(PUSH_URL);
        let method = if pushes { Method::Push } else { Method::Poll };
        let common = Members { events_requested: Some(events.clone()), description, ..Members::default() };
        let in_flat = Members {
            iss: some(ISSUER),
            aud: some(OWNER),
            delivery_method: some(method.as_str()),
            endpoint_url: url.map(str::to_owned),
            ..common.clone()
        };
        let in_ssf = Members { delivery: delivery(method.urn(), url), ..common };
        let (one, other) = (stream(in_flat), stream(in_ssf));
        prop_assert_eq!(&one.config, &other.config);
        prop_assert!(one.config.events_delivered.iter().all(|event| events.contains(event)));
        for extent in [Extent::Part, Extent::Whole] {
            // The whole answer; its flat half; its other half.
            let whole = echoed(&one);
            let flat_half = Members { delivery: None, ..whole.clone() };
            let ssf_half = Members { delivery_method: None, endpoint_url: None, ..whole.clone() };
            for members in [whole, flat_half, ssf_half] {
                prop_assert_eq!(changed(members, extent, &one).expect("an echo"), one.config.clone());
            }
        }
    }
}
