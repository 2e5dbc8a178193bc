//! Every range from its first to its last address, and the settings of an operator.

use proptest::prelude::*;

use super::*;

/// The refused ranges by first and last address, in another notation than the product's.
const REFUSED: &[(&str, &str, Kind)] = &[
    ("0.0.0.0", "0.255.255.255", Kind::Unspecified),
    ("10.0.0.0", "10.255.255.255", Kind::Private),
    ("100.64.0.0", "100.127.255.255", Kind::Shared),
    ("127.0.0.0", "127.255.255.255", Kind::Loopback),
    ("169.254.0.0", "169.254.255.255", Kind::LinkLocal),
    ("172.16.0.0", "172.31.255.255", Kind::Private),
    ("192.0.0.0", "192.0.0.255", Kind::Reserved),
    ("192.0.2.0", "192.0.2.255", Kind::Documentation),
    ("192.31.196.0", "192.31.196.255", Kind::Reserved),
    ("192.52.193.0", "192.52.193.255", Kind::Reserved),
    ("192.88.99.0", "192.88.99.255", Kind::Reserved),
    ("192.168.0.0", "192.168.255.255", Kind::Private),
    ("192.175.48.0", "192.175.48.255", Kind::Reserved),
    ("198.18.0.0", "198.19.255.255", Kind::Benchmarking),
    ("198.51.100.0", "198.51.100.255", Kind::Documentation),
    ("203.0.113.0", "203.0.113.255", Kind::Documentation),
    ("224.0.0.0", "239.255.255.255", Kind::Multicast),
    ("240.0.0.0", "255.255.255.255", Kind::Reserved),
    ("::", "::", Kind::Unspecified),
    ("::1", "::1", Kind::Loopback),
    ("::2", "::ffff:ffff", Kind::Embedding),
    ("::ffff:0.0.0.0", "::ffff:255.255.255.255", Kind::Embedding),
    ("::ffff:0:0.0.0.0", "::ffff:0:255.255.255.255", Kind::Embedding),
    ("64:ff9b::", "64:ff9b::ffff:ffff", Kind::Translated),
    ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", Kind::Embedding),
    ("100::", "100::ffff:ffff:ffff:ffff", Kind::Reserved),
    ("2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Embedding),
    ("2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff", Kind::Benchmarking),
    ("2001:1::", "2001:1:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Reserved),
    ("2001:2:1::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Reserved),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Documentation),
    ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Embedding),
    ("2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff", Kind::Reserved),
    ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Documentation),
    ("4000::", "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Reserved),
    ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::UniqueLocal),
    ("fe00::", "fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Reserved),
    ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::LinkLocal),
    ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Reserved),
    ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Kind::Multicast),
];

const METADATA: [&str; 11] = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:42::42",
    "fd00:c1::a9fe:a9fe",
];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|text| text.parse().expect("network")).collect()
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn of_bits(like: IpAddr, bits: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(bits).expect("32 bits")).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

fn is_in_a_range(address: IpAddr) -> bool {
    // Everything outside 2000::/3 is refused.
    (address.is_ipv6() && bits(address) >> 125 != 1)
        || REFUSED.iter().any(|(first, last, _)| {
            let (first, last) = (ip(first), ip(last));
            first.is_ipv4() == address.is_ipv4() && (bits(first)..=bits(last)).contains(&bits(address))
        })
}

/// An address of a refused range.
fn refused() -> impl Strategy<Value = IpAddr> {
    (prop::sample::select(REFUSED), any::<u128>()).prop_map(|((first, last, _), offset)| {
        let (first, last) = (ip(first), ip(last));
        let size = (bits(last) - bits(first)).saturating_add(1);
        of_bits(first, bits(first) + offset % size)
    })
}

fn refused_v4() -> impl Strategy<Value = Ipv4Addr> {
    refused().prop_filter_map("IPv4", |address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// The IPv6 addresses that embed this address.
fn forms(address: Ipv4Addr) -> [IpAddr; 7] {
    let low = u128::from(address.to_bits());
    [
        low,
        0xffff << 32 | low,
        0xffff << 48 | low,
        0x0064_ff9b << 96 | low,
        0x0064_ff9b_0001 << 80 | low,
        0x2002 << 112 | low << 80,
        0x2001_0000 << 96 | (!low & 0xffff_ffff),
    ]
    .map(|bits| Ipv6Addr::from_bits(bits).into())
}

#[test]
fn each_range_is_refused_from_first_to_last_address() {
    for (first, last, kind) in REFUSED {
        for address in [first, last].map(|text| ip(text)) {
            assert_eq!(check(address, Purpose::Push, &[]), Err(*kind), "{address}");
        }
        let beside = [bits(ip(first)).checked_sub(1), bits(ip(last)).checked_add(1)];
        let largest = if ip(first).is_ipv4() { u128::from(u32::MAX) } else { u128::MAX };
        for bits in beside.into_iter().flatten().filter(|bits| *bits <= largest) {
            let address = of_bits(ip(first), bits);
            assert_eq!(check(address, Purpose::Push, &[]).is_err(), is_in_a_range(address), "{address}");
        }
    }
}

#[test]
fn metadata_address_must_be_allowed_by_itself() {
    let wide = ["10.0.0.0/8", "100.64.0.0/10", "fc00::/7", "fd00::/8", "fd00:ec2::/32", "100.100.100.0/24"];
    for text in METADATA {
        for purpose in [Purpose::Push, Purpose::Keys, Purpose::Peer] {
            assert_eq!(check(ip(text), purpose, &networks(&wide)), Err(Kind::Metadata), "{text}");
            let one = format!("{text}/{}", bits_of(ip(text)));
            assert_eq!(check(ip(text), purpose, &networks(&[&one])), Ok(()), "{text}");
        }
    }
}

#[test]
fn keys_may_be_in_private_networks_only() {
    for (first, _, kind) in REFUSED {
        let is_private = matches!(kind, Kind::Private | Kind::Shared | Kind::UniqueLocal);
        assert_eq!(check(ip(first), Purpose::Keys, &[]).is_ok(), is_private, "{first}");
    }
}

#[test]
fn allowed_network_allows_itself_only() {
    let allowed =
        networks(&["10.1.0.0/16", "127.0.0.2/32", "fd12:3456::/32", "fe80::1/128", "198.18.0.0/15"]);
    for (text, outcome) in [
        ("10.1.255.255", Ok(())),
        ("10.0.255.255", Err(Kind::Private)),
        ("10.2.0.0", Err(Kind::Private)),
        ("127.0.0.2", Ok(())),
        ("127.0.0.1", Err(Kind::Loopback)),
        ("fd12:3456:ffff::1", Ok(())),
        ("fd12:3457::", Err(Kind::UniqueLocal)),
        ("fe80::1", Ok(())),
        ("fe80::2", Err(Kind::LinkLocal)),
        ("198.19.0.1", Ok(())),
        // The embedded address is allowed, this form of it is not.
        ("::ffff:10.1.0.1", Err(Kind::Embedding)),
        ("2002:a01:1::1", Err(Kind::Embedding)),
        ("64:ff9b::10.1.0.1", Err(Kind::Translated)),
    ] {
        assert_eq!(check(ip(text), Purpose::Push, &allowed), outcome, "{text}");
    }
}

#[test]
fn address_embedded_by_nat64_is_checked_too() {
    let allowed = networks(&["64:ff9b::/96", "10.1.0.0/16"]);
    for (text, outcome) in [
        ("64:ff9b::1.1.1.1", Ok(())),
        ("64:ff9b::10.1.0.1", Ok(())),
        ("64:ff9b::10.2.0.1", Err(Kind::Private)),
        ("64:ff9b::127.0.0.1", Err(Kind::Loopback)),
        ("64:ff9b::169.254.169.254", Err(Kind::Metadata)),
    ] {
        assert_eq!(check(ip(text), Purpose::Push, &allowed), outcome, "{text}");
    }
}

#[test]
fn allowed_network_is_canonical_and_refused_by_default() {
    use NetworkError::{HostBits, Malformed, Never, NotOneAddress, NotRefused};
    let spelled = |text: &str| text.parse::<Network>();
    for text in ["10.0.0.0/8", "10.1.2.3/32", "fd00::/8", "::1/128", "169.254.169.254/32", "64:ff9b::/96"] {
        assert_eq!(spelled(text).map(|network| network.to_string()), Ok(text.to_owned()));
    }
    for text in [
        "",
        "/",
        "10.0.0.0",
        "10.0.0.0/",
        "/8",
        "10.0.0.0/+8",
        "10.0.0.0/ 8",
        "10.0.0.0/08",
        "10.0.0.0/33",
        "10.0.0.0/256",
        "10.0.0/8",
        "010.0.0.0/8",
        "10/8",
        "10.0.0.0/8/8",
        " 10.0.0.0/8",
        "10.0.0.0/8 ",
        "10.0.0.0/255.0.0.0",
        "fd00::/129",
        "[fd00::]/8",
        "fe80::1%eth0/128",
        "localhost/32",
        "0xa.0.0.0/8",
        "10.0.0.0/٨",
    ] {
        assert_eq!(spelled(text), Err(Malformed), "{text}");
    }
    for (text, canonical) in [
        ("10.1.0.0/8", "10.0.0.0/8"),
        ("fd00::1/64", "fd00::/64"),
        ("10.0.0.1/0", "0.0.0.0/0"),
        ("ff::1/0", "::/0"),
    ] {
        let refusal = spelled(text).expect_err(text);
        assert!(matches!(refusal, HostBits(_)), "{text}");
        assert_eq!(refusal.to_string(), format!("must be spelled as {canonical}"));
    }
    for text in ["0.0.0.0/0", "::/0", "8.8.8.8/32", "10.0.0.0/7", "2606:4700::/32", "128.0.0.0/1"] {
        assert_eq!(spelled(text), Err(NotRefused), "{text}");
    }
    for text in ["169.254.0.0/16", "169.254.169.254/31", "fe80::/10", "fe80::/64"] {
        assert_eq!(spelled(text), Err(NotOneAddress), "{text}");
    }
    for (text, kind) in [
        ("0.0.0.0/32", Kind::Unspecified),
        ("::/128", Kind::Unspecified),
        ("224.0.0.0/4", Kind::Multicast),
        ("255.255.255.255/32", Kind::Reserved),
        ("::ffff:10.0.0.0/104", Kind::Embedding),
        ("2002::/16", Kind::Embedding),
        ("fec0::/10", Kind::Reserved),
        ("4000::/2", Kind::Reserved),
        ("fc00::/6", Kind::Reserved),
    ] {
        assert_eq!(spelled(text), Err(Never(kind)), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn address_of_a_refused_range_is_refused(address in refused()) {
        prop_assert!(check(address, Purpose::Push, &[]).is_err(), "{address}");
    }

    #[test]
    fn address_outside_all_refused_ranges_is_allowed(v4 in any::<u32>(), v6 in any::<u128>()) {
        for address in [Ipv4Addr::from_bits(v4).into(), Ipv6Addr::from_bits(v6).into(), Ipv6Addr::from_bits(v6 >> 3 | 1 << 125).into()] {
            if check(address, Purpose::Push, &[]).is_ok() {
                prop_assert!(!is_in_a_range(address), "{address}");
            }
        }
    }

    /// For any settings and purpose: a refused IPv4 address is not reachable by another form of it.
    #[test]
    fn no_form_of_a_refused_address_is_allowed(address in refused_v4(), is_push: bool) {
        let purpose = if is_push { Purpose::Push } else { Purpose::Keys };
        let allowed = networks(&["64:ff9b::/96", "fc00::/7", "10.1.0.0/16"]);
        for form in forms(address) {
            if check(address.into(), purpose, &allowed).is_err() {
                prop_assert!(check(form, purpose, &allowed).is_err(), "{form}");
            }
            prop_assert!(check(form, purpose, &[]).is_err(), "{form}");
        }
    }

    #[test]
    fn network_contains_an_address_iff_prefix_bits_agree(network: u128, address: u128, length in 0_u8..=128, same in 0_u8..=128) {
        // Usually equal up to some bit, otherwise few addresses would be in a network.
        let keep = u128::MAX.checked_shl(128 - u32::from(same)).unwrap_or(0);
        let address = (network & keep) | (address & !keep);
        let differ = (network ^ address).leading_zeros();
        let of = |bits| Network { address: IpAddr::V6(Ipv6Addr::from_bits(bits)), length };
        prop_assert_eq!(of(network).contains(Ipv6Addr::from_bits(address).into()), differ >= u32::from(length));
    }
}
