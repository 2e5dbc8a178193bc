//! Addresses that outbound calls may go to: pure rules over an address, the purpose of the call and the operator's
//! settings.
//!
//! Addresses outside the public Internet are refused by default, each range with its reason; so is all IPv6 outside
//! `2000::/3`, so that a range assigned later stays refused until it is reviewed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Purpose of a call, which determines who chose the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A push; a caller of this node chose its address.
    Push,
    /// Issuer keys; the address is from the configuration or from a document of a configured issuer.
    Keys,
    /// A peer fabric; the address is from the configuration, and its certificate must be that of the peer.
    Peer,
}

/// Reason why an address is not part of the public Internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Kind {
    /// `0.0.0.0/8` and `::`: this host on many systems.
    #[strum(serialize = "an unspecified address")]
    Unspecified,
    #[strum(serialize = "a loopback address")]
    Loopback,
    /// RFC 1918.
    #[strum(serialize = "a private address")]
    Private,
    /// RFC 6598, carrier-grade NAT.
    #[strum(serialize = "a shared address (carrier-grade NAT)")]
    Shared,
    /// RFC 4193.
    #[strum(serialize = "a private address")]
    UniqueLocal,
    /// RFC 3927 and RFC 4291 §2.5.6.
    #[strum(serialize = "a link-local address")]
    LinkLocal,
    /// Metadata services of clouds, which give credentials to processes of the host.
    #[strum(serialize = "a cloud metadata address")]
    Metadata,
    /// RFC 5737, RFC 3849 and RFC 9637.
    #[strum(serialize = "a documentation address")]
    Documentation,
    /// RFC 2544.
    #[strum(serialize = "a benchmarking address")]
    Benchmarking,
    #[strum(serialize = "a multicast address")]
    Multicast,
    /// An IPv4 address behind a NAT64 translator (RFC 6052).
    #[strum(serialize = "an address behind NAT64")]
    Translated,
    /// An IPv6 address that embeds an IPv4 address: a second spelling, or a tunnel.
    #[strum(serialize = "an IPv6 address that embeds an IPv4 address")]
    Embedding,
    /// Assigned to a protocol, withdrawn or unassigned.
    #[strum(serialize = "a reserved address")]
    Reserved,
}

/// How an operator can allow addresses of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowance {
    /// By a network that contains them.
    Network,
    /// One by one: a network that contains them does not include them.
    Address,
    Never,
}

impl Kind {
    const fn allowance(self) -> Allowance {
        match self {
            Self::Loopback
            | Self::Private
            | Self::Shared
            | Self::UniqueLocal
            | Self::Documentation
            | Self::Benchmarking
            | Self::Translated => Allowance::Network,
            Self::LinkLocal | Self::Metadata => Allowance::Address,
            Self::Unspecified | Self::Multicast | Self::Embedding | Self::Reserved => Allowance::Never,
        }
    }

    /// Whether hosts that an operator has named may be there by default: clusters use such networks.
    const fn is_for_named(self) -> bool {
        matches!(self, Self::Private | Self::Shared | Self::UniqueLocal)
    }

    /// `None`: the public Internet.
    pub(super) fn of(address: IpAddr) -> Option<Self> {
        RANGES.iter().find(|(range, _)| range.contains(address)).map(|(_, kind)| *kind)
    }
}

/// A network prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

/// Refusal of a network that an operator allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not an address, a slash and a prefix length.
    #[error("must be a network such as 10.1.0.0/16 or fd12:3456:789a::/48")]
    Malformed,
    /// Bits after the prefix are set, so the intention is ambiguous.
    #[error("must be spelled as {0}")]
    HostBits(Network),
    /// Not within one of the ranges that are refused by default.
    #[error("must lie within one range that is refused without it, such as 10.0.0.0/8")]
    NotRefused,
    /// Larger than one address, where each must be named.
    #[error("link-local and metadata addresses must be allowed one by one, with /32 or /128")]
    NotOneAddress,
    /// Addresses that are never called.
    #[error("is {0}, which is never called")]
    Never(Kind),
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Self {
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length }
    }

    const fn v6(s: [u16; 8], length: u8) -> Self {
        let address = Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
        Self { address: IpAddr::V6(address), length }
    }

    pub(super) const fn address(self) -> IpAddr {
        self.address
    }

    /// Whether it contains `address`. IPv4 and IPv6 have no address in common.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && self.network_of(address) == self.network_of(self.address)
    }

    /// Whether it contains all of `other`.
    fn covers(self, other: Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    fn is_one_address(self) -> bool {
        self.length == bits_of(self.address)
    }

    /// The prefix bits of `address`.
    fn network_of(self, address: IpAddr) -> u128 {
        let (bits, all) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        // With prefix length 0 no bit counts.
        bits.checked_shr(all - u32::from(self.length)).unwrap_or(0)
    }
}

const fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// An allowed network: in canonical spelling, and refused by default.
impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, length) = text.split_once('/').ok_or(NetworkError::Malformed)?;
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Malformed)?;
        // No sign and no second spelling of a number.
        let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || (length.len() > 1 && length.starts_with('0')) {
            return Err(NetworkError::Malformed);
        }
        let length: u8 = length.parse().map_err(|_| NetworkError::Malformed)?;
        if length > bits_of(address) {
            return Err(NetworkError::Malformed);
        }
        let network = Self { address, length };
        let begin = network.begin();
        if begin.address != address {
            return Err(NetworkError::HostBits(begin));
        }
        let kind = RANGES.iter().find(|(range, _)| range.covers(network)).map(|(_, kind)| *kind);
        match kind.ok_or(NetworkError::NotRefused)? {
            kind if kind.allowance() == Allowance::Never => Err(NetworkError::Never(kind)),
            kind if kind.allowance() == Allowance::Address && !network.is_one_address() => {
                Err(NetworkError::NotOneAddress)
            }
            _ => Ok(network),
        }
    }
}

impl Network {
    /// The network with all bits after the prefix cleared.
    fn begin(self) -> Self {
        let behind = u32::from(bits_of(self.address) - self.length);
        let bits = self.network_of(self.address).checked_shl(behind).unwrap_or(0);
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(0))),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        Self { address, length: self.length }
    }
}

/// Whether a call may go to `address`; the error is its kind.
pub(super) fn check(address: IpAddr, purpose: Purpose, allowed: &[Network]) -> Result<(), Kind> {
    let Some(kind) = Kind::of(address) else { return Ok(()) };
    let mut named = allowed.iter().filter(|network| network.contains(address));
    let is_allowed = match kind.allowance() {
        Allowance::Network => named.next().is_some(),
        Allowance::Address => named.any(|network| network.is_one_address()),
        Allowance::Never => false,
    };
    let is_usual = purpose != Purpose::Push && kind.is_for_named();
    if !(is_allowed || is_usual) {
        return Err(kind);
    }
    // The translator forwards to the embedded address, which must be allowed too.
    match address {
        IpAddr::V6(address) if kind == Kind::Translated => check(within(address).into(), purpose, allowed),
        _ => Ok(()),
    }
}

/// The IPv4 address in the last bits (RFC 6052 §2.2, prefix of 96 bits).
const fn within(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

/// Ranges that are refused by default. The first range that contains an address determines its kind, so single
/// addresses come first and the rest of IPv6 last. Sources: the IANA special-purpose registries (RFC 6890), and the
/// documentation of clouds on their metadata services.
const RANGES: &[(Network, Kind)] = &[
    (Network::v4(169, 254, 169, 254, 32), Kind::Metadata),
    // AWS credentials of containers.
    (Network::v4(169, 254, 170, 2, 32), Kind::Metadata),
    (Network::v4(169, 254, 170, 23, 32), Kind::Metadata),
    // Alibaba.
    (Network::v4(100, 100, 100, 200, 32), Kind::Metadata),
    // Oracle.
    (Network::v4(192, 0, 0, 192, 32), Kind::Metadata),
    // Azure: looks public, and is the host of the virtual machine.
    (Network::v4(168, 63, 129, 16, 32), Kind::Metadata),
    // AWS, containers on AWS, Google, Scaleway, Oracle.
    (Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), Kind::Metadata),
    (Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128), Kind::Metadata),
    (Network::v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), Kind::Metadata),
    (Network::v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), Kind::Metadata),
    (Network::v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), Kind::Metadata),
    (Network::v4(0, 0, 0, 0, 8), Kind::Unspecified),
    (Network::v4(10, 0, 0, 0, 8), Kind::Private),
    (Network::v4(100, 64, 0, 0, 10), Kind::Shared),
    (Network::v4(127, 0, 0, 0, 8), Kind::Loopback),
    (Network::v4(169, 254, 0, 0, 16), Kind::LinkLocal),
    (Network::v4(172, 16, 0, 0, 12), Kind::Private),
    (Network::v4(192, 0, 0, 0, 24), Kind::Reserved),
    (Network::v4(192, 0, 2, 0, 24), Kind::Documentation),
    // 6to4 relays (RFC 7526), AS112 (RFC 7534, RFC 7535) and AMT (RFC 7450): not addresses of hosts.
    (Network::v4(192, 31, 196, 0, 24), Kind::Reserved),
    (Network::v4(192, 52, 193, 0, 24), Kind::Reserved),
    (Network::v4(192, 88, 99, 0, 24), Kind::Reserved),
    (Network::v4(192, 168, 0, 0, 16), Kind::Private),
    (Network::v4(192, 175, 48, 0, 24), Kind::Reserved),
    (Network::v4(198, 18, 0, 0, 15), Kind::Benchmarking),
    (Network::v4(198, 51, 100, 0, 24), Kind::Documentation),
    (Network::v4(203, 0, 113, 0, 24), Kind::Documentation),
    (Network::v4(224, 0, 0, 0, 4), Kind::Multicast),
    // Includes 255.255.255.255.
    (Network::v4(240, 0, 0, 0, 4), Kind::Reserved),
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 0], 128), Kind::Unspecified),
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 1], 128), Kind::Loopback),
    // Compatible (RFC 4291 §2.5.5.1), mapped (§2.5.5.2), translated (RFC 2765).
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 0], 96), Kind::Embedding),
    (Network::v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), Kind::Embedding),
    (Network::v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), Kind::Embedding),
    (Network::v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), Kind::Translated),
    // RFC 8215: the position of the IPv4 address depends on the translator.
    (Network::v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), Kind::Embedding),
    (Network::v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), Kind::Reserved),
    // Teredo (RFC 4380), then benchmarks (RFC 5180) and the other protocols of 2001::/23 (RFC 2928).
    (Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), Kind::Embedding),
    (Network::v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), Kind::Benchmarking),
    (Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), Kind::Reserved),
    (Network::v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), Kind::Documentation),
    // 6to4 (RFC 3056).
    (Network::v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), Kind::Embedding),
    (Network::v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), Kind::Reserved),
    (Network::v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), Kind::Documentation),
    (Network::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), Kind::UniqueLocal),
    (Network::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), Kind::LinkLocal),
    (Network::v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), Kind::Reserved),
    (Network::v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), Kind::Multicast),
    // All but 2000::/3, the only range from which addresses of hosts are assigned (RFC 4291 §2.4).
    (Network::v6([0, 0, 0, 0, 0, 0, 0, 0], 3), Kind::Reserved),
    (Network::v6([0x4000, 0, 0, 0, 0, 0, 0, 0], 2), Kind::Reserved),
    (Network::v6([0x8000, 0, 0, 0, 0, 0, 0, 0], 1), Kind::Reserved),
];

#[cfg(test)]
mod tests;
