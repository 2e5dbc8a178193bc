//! Base64url by RFC 7515 §2: no padding, white space, other characters or stray bits. White space inside the
//! JSON of a header is allowed.

use trust_fabric::token::Error;

use super::{HEADER, Key, Refusal, encode, verify};

/// A token with a generated payload whose signature begins with `start`.
fn token_with_signature_from(key: &Key, start: &str) -> (Vec<u8>, String) {
    for number in 0u32.. {
        let payload = format!("T{number}").into_bytes();
        let token = key.token(&payload);
        if token.rsplit_once('.').is_some_and(|(_, signature)| signature.starts_with(start)) {
            return (payload, token);
        }
    }
    panic!("no signature begins with {start}")
}

#[test]
fn good_base64url_is_accepted() {
    let key = Key::generate();
    let mut good = vec![(b"Test".to_vec(), key.token(b"Test"))];
    // The first and the last character of the alphabet.
    good.extend(["AA", "__"].map(|start| token_with_signature_from(&key, start)));
    for header in ["{ \"kid\" : \"k\", \"alg\" : \"ES256\" }", "{\"kid\":\"k\",\n\t\"alg\":\"ES256\"}"] {
        good.push((b"Test".to_vec(), key.token_with_header(header, b"Test")));
    }
    assert_eq!(good.len(), 5);
    for (payload, token) in good {
        assert_eq!(verify(&key.document(), &token), Ok(payload), "{token}");
    }
}

#[test]
fn anything_else_is_refused_even_where_it_was_signed() {
    let key = Key::generate();
    let (head, payload) = (encode(HEADER), encode("Test"));
    let good = key.token(b"Test");
    let (input, signature) = good.rsplit_once('.').expect("a signature");
    let (_, at_edge) = token_with_signature_from(&key, "AA");
    let (edge_input, edge) = at_edge.rsplit_once('.').expect("a signature");
    let (_, last) = token_with_signature_from(&key, "__");
    let (last_input, last) = last.rsplit_once('.').expect("a signature");
    // Two characters encode eight bits and four that must be zero.
    let (stray, clean) = (format!("{head}.AB"), key.token_of_parts(&head, "AA"));
    let clean_signature = clean.rsplit_once('.').expect("a signature").1;
    let cut = head.len() - 1;
    let cases = [
        ("spaces before the signature", format!("{input}.    {signature}")),
        ("? before the signature", format!("{input}.?{signature}")),
        ("? behind the signature", format!("{input}.{signature}?")),
        ("? for a zero of the signature", format!("{edge_input}.?{}", &edge[1..])),
        ("? for the last characters of the alphabet", format!("{last_input}.??{}", &last[2..])),
        ("spaces behind the header", key.token_of_parts(&format!("{head}    "), &payload)),
        ("# behind the header", key.token_of_parts(&format!("{head}####"), &payload)),
        ("padding of the header", key.token_of_parts(&encode_padded(HEADER), &payload)),
        ("spaces before the payload", key.token_of_parts(&head, &format!("    {payload}"))),
        ("# before the payload", key.token_of_parts(&head, &format!("####{payload}"))),
        ("padding of the payload", key.token_of_parts(&head, &format!("{payload}=="))),
        ("? before the payload", key.token_of_parts(&head, &format!("?{payload}"))),
        ("? in a header signed without", format!("{}?{}.{payload}.{signature}", &head[..cut], &head[cut..])),
        ("? in a payload signed without", format!("{head}.{payload}?.{signature}")),
        ("stray bits in a payload signed without", format!("{stray}.{clean_signature}")),
        ("stray bits in the payload", key.token_of_parts(&head, "AB")),
    ];
    assert_eq!(cases.len(), 16);
    for (case, token) in cases {
        assert_eq!(verify(&key.document(), &token), Err(Refusal::Token(Error::NotCompact)), "{case}");
    }
}

/// `text` with padding, after spaces that make padding necessary.
fn encode_padded(text: &str) -> String {
    let text = if text.len().is_multiple_of(3) { format!(" {text}") } else { text.to_owned() };
    let encoded = encode(text);
    let padding = "=".repeat((4 - encoded.len() % 4) % 4);
    assert!(!padding.is_empty());
    encoded + &padding
}
