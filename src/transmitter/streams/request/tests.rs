//! Stream requests in both shapes; every rule is broken once.

use proptest::prelude::*;

use super::UpdateKind::{Patch, Replace};
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

/// `https` is the only rule in these tests.
fn push_url(url: &str) -> Result<(), String> {
    if url.starts_with("https://") { Ok(()) } else { Err("must be https".to_owned()) }
}

fn terms() -> Terms<'static> {
    Terms { issuer: ISSUER, poll_url: POLL_URL, push_url: &push_url }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "every field may be absent")]
fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// The shape of the specification.
fn flat() -> StreamInput {
    StreamInput {
        iss: some(ISSUER),
        aud: some("https://receiver.example"),
        events_requested: Some(texts(&[REVOKED])),
        delivery_method: some("push"),
        endpoint_url: some(PUSH_URL),
        ..StreamInput::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "every field may be absent")]
fn delivery(method: &str, endpoint_url: Option<&str>) -> Option<Delivery> {
    Some(Delivery {
        method: some(method),
        endpoint_url: endpoint_url.map(str::to_owned),
        authorization_header: None,
    })
}

/// The shape of SSF.
fn ssf() -> StreamInput {
    StreamInput {
        events_requested: Some(texts(&[REVOKED])),
        delivery: delivery(PUSH, Some(PUSH_URL)),
        ..StreamInput::default()
    }
}

fn created(input: StreamInput) -> Result<StreamConfig, String> {
    create(input, &terms(), OWNER, ID.to_owned()).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(input: StreamInput, text: &str) {
    let input_text = format!("{input:?}");
    let error = created(input).expect_err(text);
    assert!(error.starts_with(text), "{input_text}: {error}");
}

/// A stream created from these fields.
fn stream(input: StreamInput) -> Stream {
    let at = Timestamp::from_secs(0);
    Stream {
        config: created(input).expect("valid"),
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

fn changed(input: StreamInput, kind: UpdateKind, current: &Stream) -> Result<StreamConfig, String> {
    change(input, kind, current, &terms()).map_err(|error| error.to_string())
}

fn patched(input: StreamInput, current: &Stream) -> Result<StreamConfig, String> {
    changed(input, Patch, current)
}

#[track_caller]
fn not_changed(input: StreamInput, kind: UpdateKind, current: &Stream, text: &str) {
    let input_text = format!("{input:?}");
    let error = changed(input, kind, current).expect_err(text);
    assert!(error.starts_with(text), "{kind:?} {input_text}: {error}");
}

/// The response for a stream, as a receiver sends it back.
fn echoed(stream: &Stream) -> StreamInput {
    let config = &stream.config;
    let method = Method::of(config);
    let url = config.endpoint_url.clone().unwrap_or_else(|| POLL_URL.to_owned());
    StreamInput {
        stream_id: some(&config.stream_id),
        iss: some(ISSUER),
        aud: some(&config.aud),
        events_supported: Some(texts(&EVENTS_SUPPORTED)),
        events_requested: Some(config.events_requested.clone()),
        events_delivered: Some(config.events_delivered.clone()),
        status: some(stream.status.into_str()),
        reason: stream.reason.clone(),
        delivery_method: some(method.into_str()),
        endpoint_url: Some(url.clone()),
        delivery: delivery(method.urn(), Some(&url)),
        min_verification_interval: Some(limits::VERIFICATION_INTERVAL_MIN.as_secs()),
        description: config.description.clone(),
        ..StreamInput::default()
    }
}

#[test]
fn both_shapes_create_the_same_stream() {
    let expected = StreamConfig {
        stream_id: ID.to_owned(),
        owner: OWNER.to_owned(),
        aud: "https://receiver.example".to_owned(),
        events_requested: texts(&[REVOKED]),
        events_delivered: texts(&[REVOKED]),
        endpoint_url: some(PUSH_URL),
        description: None,
    };
    assert_eq!(created(flat()).expect("flat"), expected);
    let aud = expected.aud.clone();
    assert_eq!(created(StreamInput { aud: Some(aud), ..ssf() }).expect("SSF"), expected);
    let both = StreamInput { delivery: ssf().delivery, ..flat() };
    assert_eq!(created(both).expect("both"), expected);
    // One states the method, the other the endpoint.
    let halves = StreamInput { delivery: delivery(PUSH, None), delivery_method: None, ..flat() };
    assert_eq!(created(halves).expect("halves"), expected);
}

#[test]
fn absent_delivery_means_poll_and_caller_as_audience() {
    let input = StreamInput { delivery: None, ..ssf() };
    let config = created(input.clone()).expect("valid");
    assert_eq!((config.aud.as_str(), config.endpoint_url), (OWNER, None));
    let polled = StreamInput { delivery: delivery(POLL, None), ..ssf() };
    assert_eq!(created(polled).expect("valid").endpoint_url, None);
    let flat = StreamInput { delivery_method: some("poll"), endpoint_url: None, ..flat() };
    assert_eq!(created(flat).expect("valid").endpoint_url, None);
    let error = create(input, &terms(), "", ID.to_owned()).expect_err("refused").to_string();
    assert_eq!(error, "aud: is required from an anonymous caller");
}

#[test]
fn flat_shape_requires_its_fields() {
    for (name, input) in [
        ("iss", StreamInput { iss: None, ..flat() }),
        ("aud", StreamInput { aud: None, ..flat() }),
        ("events_requested", StreamInput { events_requested: None, ..flat() }),
        ("delivery_method", StreamInput { delivery_method: None, ..flat() }),
        ("delivery_method", StreamInput { delivery_method: None, endpoint_url: None, ..flat() }),
    ] {
        refused(input, &format!("{name}: is required where there is no delivery"));
    }
    refused(StreamInput { events_requested: None, ..ssf() }, "events_requested: is required");
    refused(StreamInput::default(), "events_requested: is required");
}

#[test]
fn contradicting_shapes_are_refused() {
    let both = StreamInput { delivery: ssf().delivery, ..flat() };
    refused(
        StreamInput { delivery_method: some("poll"), ..both.clone() },
        "delivery_method: contradicts delivery.method",
    );
    refused(
        StreamInput { delivery: delivery(POLL, Some(PUSH_URL)), ..both.clone() },
        "delivery_method: contradicts delivery.method",
    );
    for other in
        ["https://receiver.example/events/", "https://receiver.example/Events", "https://other.example/"]
    {
        let input = StreamInput { endpoint_url: some(other), ..both.clone() };
        refused(input, "endpoint_url: contradicts delivery.endpoint_url");
    }
}

#[test]
fn push_needs_allowed_endpoint_and_poll_has_none() {
    refused(StreamInput { endpoint_url: None, ..flat() }, "endpoint_url: is required for push");
    refused(
        StreamInput { delivery: delivery(PUSH, None), ..ssf() },
        "delivery.endpoint_url: is required for push",
    );
    refused(StreamInput { endpoint_url: some("http://r.example"), ..flat() }, "endpoint_url: must be https");
    refused(StreamInput { endpoint_url: some(""), ..flat() }, "endpoint_url: must be https");
    refused(
        StreamInput { delivery: delivery(PUSH, Some("http://r.example")), ..ssf() },
        "delivery.endpoint_url: must be https",
    );
    let text = "is set by the transmitter for poll";
    refused(StreamInput { delivery_method: some("poll"), ..flat() }, &format!("endpoint_url: {text}"));
    for url in [PUSH_URL, POLL_URL] {
        refused(
            StreamInput { delivery: delivery(POLL, Some(url)), ..ssf() },
            &format!("delivery.endpoint_url: {text}"),
        );
    }
    for method in ["Push", "", "urn:ietf:rfc:8935"] {
        let input = StreamInput { delivery_method: some(method), ..flat() };
        refused(input, "delivery_method: must be push or poll");
    }
    for method in
        ["push", "", "urn:ietf:rfc:8417", "https://schemas.openid.net/secevent/risc/delivery-method/push"]
    {
        refused(
            StreamInput { delivery: delivery(method, Some(PUSH_URL)), ..ssf() },
            "delivery.method: must be urn:",
        );
    }
    let nothing = Some(Delivery { endpoint_url: some(PUSH_URL), ..Delivery::default() });
    refused(StreamInput { delivery: nothing, ..ssf() }, "delivery.method: is required");
}

#[test]
fn secret_of_a_receiver_is_refused() {
    let secret = |url| {
        let delivery =
            Delivery { method: some(PUSH), endpoint_url: url, authorization_header: some("Bearer x") };
        StreamInput { delivery: Some(delivery), ..ssf() }
    };
    let text = "delivery.authorization_header: is not supported: this fabric stores no secret of a receiver; \
                it signs pushed events";
    refused(secret(some(PUSH_URL)), text);
    refused(secret(None), text);
    let current = stream(ssf());
    not_changed(secret(some(PUSH_URL)), Patch, &current, text);
    not_changed(secret(some(PUSH_URL)), Replace, &current, text);
}

#[test]
fn event_type_is_a_limited_absolute_uri() {
    let with = |events: &[&str]| StreamInput { events_requested: Some(texts(events)), ..ssf() };
    refused(with(&[]), "events_requested: must be 1 to 64 event types");
    let most = vec![REVOKED; limits::STREAM_EVENT_TYPES_MAX];
    assert_eq!(created(with(&most)).expect("valid").events_delivered, [REVOKED]);
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
    assert!(created(with(&[REVOKED, &longest])).is_ok());
    refused(with(&[REVOKED, &format!("{longest}a")]), "events_requested[1]: must be an absolute URI");
}

#[test]
fn delivered_types_are_requested_and_supported_in_order() {
    let with = |events: &[&str]| StreamInput { events_requested: Some(texts(events)), ..ssf() };
    let config = created(with(&[UNKNOWN, CHANGED, REVOKED, CHANGED])).expect("valid");
    assert_eq!(config.events_delivered, [CHANGED, REVOKED]);
    assert_eq!(config.events_requested, [UNKNOWN, CHANGED, REVOKED, CHANGED]);
    refused(with(&[UNKNOWN]), "events_requested: none of these event types is supported");
    // A different spelling is a different type.
    refused(with(&[&REVOKED.to_uppercase()]), "events_requested: none of these");
    refused(with(&[&format!("{REVOKED}/")]), "events_requested: none of these");
}

#[test]
fn receiver_may_narrow_delivered_types_only() {
    let with = |delivered: &[&str]| StreamInput {
        events_requested: Some(texts(&[CHANGED, REVOKED, UNKNOWN])),
        events_delivered: Some(texts(delivered)),
        ..flat()
    };
    assert_eq!(created(with(&[REVOKED, REVOKED])).expect("valid").events_delivered, [REVOKED]);
    assert_eq!(created(with(&[REVOKED, CHANGED])).expect("valid").events_delivered, [CHANGED, REVOKED]);
    refused(with(&[]), "events_delivered: must not be empty");
    refused(with(&[REVOKED, UNKNOWN]), "events_delivered[1]: must be one of events_requested");
    let other = StreamInput { events_requested: Some(texts(&[CHANGED])), ..with(&[REVOKED]) };
    refused(other, "events_delivered[0]: must be one of events_requested");
}

#[test]
fn new_stream_must_not_state_transmitter_fields() {
    for (name, input) in [
        ("stream_id", StreamInput { stream_id: some(ID), ..flat() }),
        ("events_supported", StreamInput { events_supported: Some(texts(&EVENTS_SUPPORTED)), ..flat() }),
        ("status", StreamInput { status: some("enabled"), ..flat() }),
        ("reason", StreamInput { reason: some("r"), ..flat() }),
        ("min_verification_interval", StreamInput { min_verification_interval: Some(60), ..ssf() }),
    ] {
        refused(input, &format!("{name}: is set by the transmitter"));
    }
    for iss in ["", "https://fabric.example/", "https://Fabric.example", "https://other.example"] {
        refused(
            StreamInput { iss: some(iss), ..ssf() },
            "iss: must be this fabric's own: https://fabric.example",
        );
        assert_eq!(created(StreamInput { iss: some(iss), ..flat() }), created(flat()), "{iss}");
        let both = StreamInput { iss: some(iss), delivery: delivery(PUSH, Some(PUSH_URL)), ..flat() };
        refused(both, "iss: must be this fabric's own");
    }
}

#[test]
fn audience_and_description_are_limited() {
    let audience = "a".repeat(limits::URI_BYTES_MAX);
    assert_eq!(created(StreamInput { aud: Some(audience.clone()), ..flat() }).expect("valid").aud, audience);
    let text = "d".repeat(limits::STREAM_DESCRIPTION_BYTES_MAX);
    let described = created(StreamInput { description: Some(text.clone()), ..ssf() }).expect("valid");
    assert_eq!(described.description, Some(text.clone()));
    for wrong in [String::new(), format!("{audience}a"), "a\nb".to_owned()] {
        refused(StreamInput { aud: Some(wrong), ..flat() }, "aud: must be 1 to 2048 bytes");
    }
    for wrong in [String::new(), format!("{text}d"), "a\u{7}".to_owned()] {
        refused(
            StreamInput { description: Some(wrong.clone()), ..ssf() },
            "description: must be 1 to 256 bytes",
        );
        let input = StreamInput { description: Some(wrong), ..StreamInput::default() };
        not_changed(input, Patch, &stream(ssf()), "description: must be 1 to 256 bytes");
    }
}

#[test]
fn patch_keeps_absent_fields_and_put_removes_them() {
    let current = stream(StreamInput { description: some("mine"), ..ssf() });
    assert_eq!(patched(StreamInput::default(), &current).expect("valid"), current.config);
    let renamed = patched(StreamInput { description: some("yours"), ..StreamInput::default() }, &current);
    assert_eq!(
        renamed.expect("valid"),
        StreamConfig { description: some("yours"), ..current.config.clone() }
    );
    let events = Some(texts(&[CHANGED, UNKNOWN]));
    let other = patched(StreamInput { events_requested: events.clone(), ..StreamInput::default() }, &current);
    let other = other.expect("valid");
    assert_eq!((other.events_delivered, other.endpoint_url), (texts(&[CHANGED]), some(PUSH_URL)));

    let put = changed(StreamInput { events_requested: events, ..StreamInput::default() }, Replace, &current);
    let put = put.expect("valid");
    assert_eq!((put.description, put.endpoint_url), (None, None), "without delivery it is polled");
    assert_eq!(put.aud, current.config.aud);
    not_changed(StreamInput::default(), Replace, &current, "events_requested: is required");
    let alone = StreamInput { delivery: None, endpoint_url: some(PUSH_URL), ..ssf() };
    not_changed(alone, Replace, &current, "delivery_method: is required with endpoint_url");
}

#[test]
fn delivery_is_changed_in_either_shape() {
    let none = StreamInput::default;
    let pushed = stream(ssf());
    let polled = stream(StreamInput { delivery: delivery(POLL, None), ..ssf() });
    let elsewhere = "https://elsewhere.example/events";
    for (input, current, url) in [
        (StreamInput { endpoint_url: some(elsewhere), ..none() }, &pushed, Some(elsewhere)),
        (StreamInput { delivery: delivery(PUSH, Some(elsewhere)), ..none() }, &polled, Some(elsewhere)),
        (StreamInput { delivery: delivery(PUSH, None), ..none() }, &pushed, Some(PUSH_URL)),
        (StreamInput { delivery_method: some("push"), ..none() }, &pushed, Some(PUSH_URL)),
        (StreamInput { delivery_method: some("poll"), ..none() }, &pushed, None),
        (StreamInput { delivery: delivery(POLL, Some(POLL_URL)), ..none() }, &polled, None),
        (StreamInput { endpoint_url: some(POLL_URL), ..none() }, &polled, None),
    ] {
        let input_text = format!("{input:?}");
        assert_eq!(patched(input, current).expect(&input_text).endpoint_url.as_deref(), url, "{input_text}");
    }
    for (input, current, text) in [
        (StreamInput { delivery_method: some("push"), ..none() }, &polled, "endpoint_url: is required"),
        (
            StreamInput { delivery: delivery(PUSH, None), ..none() },
            &polled,
            "delivery.endpoint_url: is required",
        ),
        (StreamInput { endpoint_url: some(PUSH_URL), ..none() }, &polled, "endpoint_url: is set"),
        (StreamInput { endpoint_url: some("http://r.example"), ..none() }, &pushed, "endpoint_url: must"),
        (
            StreamInput { delivery: delivery(POLL, Some(PUSH_URL)), ..none() },
            &pushed,
            "delivery.endpoint_url: is set",
        ),
    ] {
        not_changed(input, Patch, current, text);
    }
}

#[test]
fn transmitter_fields_must_be_unchanged() {
    let current = Stream { reason: some("why"), ..stream(ssf()) };
    let none = StreamInput::default;
    for kind in [Patch, Replace] {
        for (input, text) in [
            (StreamInput { iss: some("https://other.example"), ..none() }, "iss: must be"),
            (StreamInput { aud: some("https://other.example"), ..none() }, "aud: cannot be changed"),
            (StreamInput { events_supported: Some(texts(&[REVOKED])), ..none() }, "events_supported: is set"),
            (
                StreamInput { min_verification_interval: Some(1), ..none() },
                "min_verification_interval: is set",
            ),
            (StreamInput { status: some("paused"), ..none() }, "status: is changed with POST"),
            (StreamInput { reason: some("because"), ..none() }, "reason: is changed with POST"),
        ] {
            not_changed(input, kind, &current, text);
        }
        let input = StreamInput { events_requested: Some(texts(&[REVOKED])), ..echoed(&current) };
        let more = StreamInput { events_delivered: Some(texts(&[REVOKED, CHANGED])), ..input };
        not_changed(more, kind, &current, "events_delivered: is set by the transmitter");
        assert_eq!(changed(echoed(&current), kind, &current).expect("an echo"), current.config);
    }
}

#[test]
fn receiver_may_echo_old_or_new_delivered_types() {
    let narrow = stream(StreamInput {
        events_requested: Some(texts(&[REVOKED, CHANGED])),
        events_delivered: Some(texts(&[CHANGED])),
        ..flat()
    });
    // Unchanged: it stays narrow.
    assert_eq!(changed(echoed(&narrow), Replace, &narrow).expect("valid").events_delivered, [CHANGED]);
    assert_eq!(patched(StreamInput::default(), &narrow).expect("valid").events_delivered, [CHANGED]);
    // Changed request: its types are delivered, whichever of both lists is sent along.
    for sent in [&[CHANGED][..], &[REVOKED][..]] {
        let input = StreamInput {
            events_requested: Some(texts(&[REVOKED])),
            events_delivered: Some(texts(sent)),
            ..echoed(&narrow)
        };
        assert_eq!(changed(input, Replace, &narrow).expect("valid").events_delivered, [REVOKED]);
    }
    let wider = StreamInput { events_delivered: Some(texts(&[REVOKED, CHANGED])), ..StreamInput::default() };
    not_changed(wider, Patch, &narrow, "events_delivered: is set by the transmitter");
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
    fn both_shapes_round_trip_to_the_same_stream(
        events in any_events(),
        pushes: bool,
        description in prop::option::of("[a-z]{1,20}"),
    ) {
        let url = pushes.then_some(PUSH_URL);
        let method = if pushes { Method::Push } else { Method::Poll };
        let common = StreamInput { events_requested: Some(events.clone()), description, ..StreamInput::default() };
        let in_flat = StreamInput {
            iss: some(ISSUER),
            aud: some(OWNER),
            delivery_method: some(method.into_str()),
            endpoint_url: url.map(str::to_owned),
            ..common.clone()
        };
        let in_ssf = StreamInput { delivery: delivery(method.urn(), url), ..common };
        let (one, other) = (stream(in_flat), stream(in_ssf));
        prop_assert_eq!(&one.config, &other.config);
        prop_assert!(one.config.events_delivered.iter().all(|event| events.contains(event)));
        for kind in [Patch, Replace] {
            // The whole response; its flat half; its other half.
            let whole = echoed(&one);
            let flat_half = StreamInput { delivery: None, ..whole.clone() };
            let ssf_half = StreamInput { delivery_method: None, endpoint_url: None, ..whole.clone() };
            for input in [whole, flat_half, ssf_half] {
                prop_assert_eq!(changed(input, kind, &one).expect("an echo"), one.config.clone());
            }
        }
    }
}
