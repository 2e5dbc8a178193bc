//! RSASSA-PKCS1-v1_5: signatures over encodings with one fault (RFC 8017 §8.2.2: a verifier compares
//! with the one good encoding, and so accepts no other).

use std::collections::BTreeSet;

use aws_lc_rs::digest::{self, SHA256, SHA384, SHA512};
use trust_fabric::token::Error;

use super::keys::{Key, header, payloads};
use super::rsa_key::RsaKey;
use super::{Refusal, encode as base64url, verify};

/// The parts of a `DigestInfo`, from the outside in (RFC 8017 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Info,
    Algorithm,
    Oid,
    Null,
    Digest,
}

/// How a part is written, from its tag and value.
type Write = fn(u8, &[u8]) -> Vec<u8>;

const DIGEST_TAG: u8 = 4;
const NULL_TAG: u8 = 5;
const OID_TAG: u8 = 6;
const SEQUENCE_TAG: u8 = 0x30;

/// The hash of a JWS algorithm.
pub fn hash_of(alg: &str) -> &'static digest::Algorithm {
    match &alg[2..] {
        "256" => &SHA256,
        "384" => &SHA384,
        _ => &SHA512,
    }
}

/// The object identifier of a hash: 2.16.840.1.101.3.4.2, then 1, 2 or 3 (RFC 8017 appendix B.1).
fn oid_of(hash: &digest::Algorithm) -> [u8; 9] {
    let last = match hash.output_len() {
        32 => 1,
        48 => 2,
        _ => 3,
    };
    [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, last]
}

/// A part as DER wants it.
fn good(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("a short value");
    let head = if length < 0x80 { vec![tag, length] } else { vec![tag, 0x81, length] };
    [head, value.to_vec()].concat()
}

/// The `DigestInfo` of `input`, with `part` written by `write`. Lengths around it fit what was written.
fn digest_info(hash: &'static digest::Algorithm, input: &[u8], part: Part, write: Write) -> Vec<u8> {
    let written = |this, tag, value: &[u8]| if this == part { write(tag, value) } else { good(tag, value) };
    let oid = written(Part::Oid, OID_TAG, &oid_of(hash));
    let null = written(Part::Null, NULL_TAG, &[]);
    let digest = written(Part::Digest, DIGEST_TAG, digest::digest(hash, input).as_ref());
    let algorithm = written(Part::Algorithm, SEQUENCE_TAG, &[oid, null].concat());
    written(Part::Info, SEQUENCE_TAG, &[algorithm, digest].concat())
}

/// The `DigestInfo` of `input`.
pub fn good_digest_info(hash: &'static digest::Algorithm, input: &[u8]) -> Vec<u8> {
    digest_info(hash, input, Part::Info, good)
}

/// EMSA-PKCS1-v1_5 around any `DigestInfo` (RFC 8017 §9.2).
pub fn encode(digest_info: &[u8], bytes: usize) -> Vec<u8> {
    let filling = vec![0xff; bytes - digest_info.len() - 3];
    [&[0, 1], filling.as_slice(), &[0], digest_info].concat()
}

/// A part whose length octets are `length`.
fn with_length(tag: u8, length: &[u8], value: &[u8]) -> Vec<u8> {
    [&[tag], length, value].concat()
}

fn length_of(value: &[u8]) -> u8 {
    u8::try_from(value.len()).expect("a short value")
}

/// A part made of two pieces, each written with `piece_tag`.
fn composed(piece_tag: u8, value: &[u8]) -> Vec<u8> {
    let (first, second) = value.split_at(value.len() / 2);
    [good(piece_tag, first), good(piece_tag, second)].concat()
}

const IN_EVERY_PART: [(&str, Write); 27] = [
    ("length in the long form", |tag, value| with_length(tag, &[0x81, length_of(value)], value)),
    ("length with a leading zero", |tag, value| with_length(tag, &[0x82, 0, length_of(value)], value)),
    ("length one too large", |tag, value| with_length(tag, &[length_of(value) + 1], value)),
    ("length plus 2^32", |tag, value| with_length(tag, &[0x85, 1, 0, 0, 0, length_of(value)], value)),
    ("length plus 2^64", |tag, value| {
        with_length(tag, &[0x89, 1, 0, 0, 0, 0, 0, 0, 0, length_of(value)], value)
    }),
    ("length 2^31 - 1", |tag, value| with_length(tag, &[0x84, 0x7f, 0xff, 0xff, 0xff], value)),
    ("length 2^31", |tag, value| with_length(tag, &[0x84, 0x80, 0, 0, 0], value)),
    ("length 2^32 - 1", |tag, value| with_length(tag, &[0x84, 0xff, 0xff, 0xff, 0xff], value)),
    ("length 2^40 - 1", |tag, value| with_length(tag, &[&[0x85][..], &[0xff; 5]].concat(), value)),
    ("length 2^64 - 1", |tag, value| with_length(tag, &[&[0x88][..], &[0xff; 8]].concat(), value)),
    ("length of something else", |tag, value| with_length(tag, &[0x7f], value)),
    ("zeros at the end of the value", |tag, value| good(tag, &[value, &[0, 0]].concat())),
    ("a NULL at the end of the value", |tag, value| good(tag, &[value, &[NULL_TAG, 0]].concat())),
    ("an unknown value before it", |tag, value| good(tag, &[&[0x49, 0x01, 0x77][..], value].concat())),
    ("a sequence before it", |tag, value| good(tag, &[&[0x25, 0x01, 0x77][..], value].concat())),
    ("an unknown value after it", |tag, value| good(tag, &[value, &[0x49, 0x01, 0x78]].concat())),
    ("unknown tags before it", |tag, value| [&[0xaa, 0, 0xbb, 0, 0xcd, 0][..], &good(tag, value)].concat()),
    ("length cut off", |tag, _| vec![tag, 0x81]),
    ("unknown tags at the start of the value", |tag, value| {
        good(tag, &[&[0xaa, 0, 0xbb, 0, 0xcd, 0][..], value].concat())
    }),
    ("in pieces of indefinite length", |tag, value| {
        with_length(tag | 0x20, &[0x80], &[composed(tag, value), vec![0, 0]].concat())
    }),
    ("in pieces of a wrong tag", |tag, value| good(tag | 0x20, &composed(0x0c, value))),
    ("the next tag", |tag, value| good(tag + 1, value)),
    ("primitive for constructed, or the reverse", |tag, value| good(tag ^ 0x20, value)),
    ("a tag of the application", |tag, value| good(tag | 0x40, value)),
    ("a tag of the context", |tag, value| good(tag | 0x80, value)),
    ("the highest tag", |_, value| good(0xff, value)),
    ("in pieces", |tag, value| good(tag | 0x20, &composed(tag, value))),
];

const IN_ALL_BUT_NULL: [(&str, Write); 6] = [
    ("length one too small", |tag, value| with_length(tag, &[length_of(value) - 1], value)),
    ("indefinite length without an end", |tag, value| with_length(tag, &[0x80], value)),
    ("only its tag", |tag, _| vec![tag]),
    ("zeros at the start of the value", |tag, value| good(tag, &[&[0, 0], value].concat())),
    ("a NULL in its place", |_, _| vec![NULL_TAG, 0]),
    ("without its value", |tag, _| vec![tag, 0]),
];

const IN_INFO_ALGORITHM_AND_OID: [(&str, Write); 2] = [
    ("not there", |_, _| Vec::new()),
    ("zeros behind it", |tag, value| [good(tag, value), vec![0, 0]].concat()),
];

const IN_SEQUENCES: [(&str, Write); 15] = [
    ("value without its last byte", |tag, value| good(tag, &value[..value.len() - 1])),
    ("value without its first byte", |tag, value| good(tag, &value[1..])),
    ("indefinite length", |tag, value| with_length(tag, &[0x80], &[value, &[0, 0]].concat())),
    ("half an end of contents", |tag, value| with_length(tag, &[0x80], &[value, &[0]].concat())),
    ("indefinite length with one element more", |tag, value| {
        with_length(tag, &[0x80], &[value, &[NULL_TAG, 0, 0, 0]].concat())
    }),
    ("indefinite length with half an element more", |tag, value| {
        with_length(tag, &[0x80], &[value, &[OID_TAG, 0x08, 0x11, 0, 0]].concat())
    }),
    ("indefinite length, then more", |tag, value| {
        with_length(tag, &[0x80], &[value, &[0, 0, 0xfe, 0x01, 0x77]].concat())
    }),
    ("an end of contents with contents", |tag, value| {
        with_length(tag, &[0x80], &[value, &[0, 0x01, 0x77]].concat())
    }),
    ("an empty sequence first", |tag, value| good(tag, &[&[SEQUENCE_TAG, 0], value].concat())),
    ("an empty sequence last", |tag, value| good(tag, &[value, &[SEQUENCE_TAG, 0]].concat())),
    ("one zero last", |tag, value| good(tag, &[value, &[0]].concat())),
    ("a high tag number last", |tag, value| good(tag, &[value, &[0xbf, 0x7f, 0]].concat())),
    ("a NULL with an explicit tag last", |tag, value| good(tag, &[value, &[0xa0, 2, NULL_TAG, 0]].concat())),
    ("a NULL with an implicit tag last", |tag, value| good(tag, &[value, &[0xa0, 0]].concat())),
    ("a sequence in the sequence", |tag, value| good(tag, &good(tag, value))),
];

/// A digest of SHA-256 with its tag and length.
const DIGEST_PART_BYTES: usize = 34;

const IN_INFO: [(&str, Write); 2] = [
    ("without its last element", |tag, value| good(tag, &value[..value.len() - DIGEST_PART_BYTES])),
    ("its last element twice", |tag, value| {
        good(tag, &[value, &value[value.len() - DIGEST_PART_BYTES..]].concat())
    }),
];

const IN_OID_AND_DIGEST: [(&str, Write); 4] = [
    ("another first byte", |tag, value| good(tag, &[&[value[0] ^ 1], &value[1..]].concat())),
    ("another last byte", |tag, value| {
        good(tag, &[&value[..value.len() - 1], &[value[value.len() - 1] ^ 4]].concat())
    }),
    ("value without its last byte", |tag, value| good(tag, &value[..value.len() - 1])),
    ("value without its first byte", |tag, value| good(tag, &value[1..])),
];

const IN_OID: [(&str, Write); 7] = [
    // 1.3.14.3.2.26.
    ("SHA-1", |tag, _| good(tag, &[0x2b, 0x0e, 0x03, 0x02, 0x1a])),
    ("one arc more", |tag, value| good(tag, &[value, &[1]].concat())),
    ("another first arc", |tag, value| good(tag, &[&[0x10], &value[1..]].concat())),
    ("another middle arc", |tag, value| good(tag, &[&value[..3], &[value[3] + 1], &value[4..]].concat())),
    ("an arc above 2^64", |tag, value| {
        good(tag, &[&value[..8], &[0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01]].concat())
    }),
    ("an arc without an end", |tag, value| good(tag, &[value, &[0xe0]].concat())),
    ("an arc with a leading zero", |tag, value| good(tag, &[&value[..8], &[0x80], &value[8..]].concat())),
];

const IN_NULL: [(&str, Write); 1] = [("a NULL with a value", |tag, _| good(tag, &[0]))];

/// Every fault a part can have.
fn faults(part: Part) -> Vec<(&'static str, Write)> {
    let mut faults = IN_EVERY_PART.to_vec();
    if part != Part::Null {
        faults.extend(IN_ALL_BUT_NULL);
    }
    if matches!(part, Part::Info | Part::Algorithm | Part::Oid) {
        faults.extend(IN_INFO_ALGORITHM_AND_OID);
    }
    if matches!(part, Part::Info | Part::Algorithm) {
        faults.extend(IN_SEQUENCES);
    }
    if matches!(part, Part::Oid | Part::Digest) {
        faults.extend(IN_OID_AND_DIGEST);
    }
    match part {
        Part::Info => faults.extend(IN_INFO),
        Part::Oid => faults.extend(IN_OID),
        Part::Null => faults.extend(IN_NULL),
        Part::Algorithm | Part::Digest => {}
    }
    faults
}

#[test]
fn an_encoding_with_a_fault_is_no_signature() {
    let key = RsaKey::generate(2048);
    let document = serde_json::json!({"keys": [key.jwk("RS256")]});
    let input = format!("{}.{}", base64url(header("RS256")), base64url("foo"));
    let outcome = |digest_info: &[u8]| {
        let signature = key.sign(&encode(digest_info, key.bytes()));
        verify(&document, &format!("{input}.{}", base64url(signature)))
    };
    let good = good_digest_info(&SHA256, input.as_bytes());
    assert_eq!(outcome(&good).as_deref(), Ok(&b"foo"[..]));

    let mut counts = Vec::new();
    for part in [Part::Info, Part::Algorithm, Part::Oid, Part::Null, Part::Digest] {
        let mut distinct = BTreeSet::from([good.clone()]);
        for (fault, write) in faults(part) {
            let digest_info = digest_info(&SHA256, input.as_bytes(), part, write);
            let refused = outcome(&digest_info);
            assert_eq!(refused, Err(Refusal::Token(Error::SignatureInvalid)), "{part:?}: {fault}");
            assert!(distinct.insert(digest_info), "{part:?}: {fault}: a case of its own");
        }
        counts.push(distinct.len() - 1);
    }
    assert_eq!(counts, [52, 50, 46, 28, 37]);
}

#[test]
fn good_signatures_over_any_payload_are_accepted() {
    let mut cases = 0;
    for alg in ["RS256", "RS384", "RS512"] {
        let key = Key::rsa(alg);
        for payload in payloads() {
            assert_eq!(verify(&key.document(), &key.token(&payload)), Ok(payload), "{alg}");
            cases += 1;
        }
    }
    assert_eq!(cases, 15, "13 there: the text as payload with RS256 only");
}
