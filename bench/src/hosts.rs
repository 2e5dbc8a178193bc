//! Hosts for nodes under test: each node in its own network namespace, so that it can be partitioned from the
//! other nodes and still be reached by clients. Needs root and `ip` (iproute2).
//!
//! Each host has two cables: one to the clients' bridge, which has an address of this machine, and one to the
//! peers' bridge. To partition a host, the second is pulled: packets are dropped in both directions without
//! an error, as with a failed switch.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::members::command;

const CLIENTS: &str = "tfb-clients";
const PEERS: &str = "tfb-peers";
/// Clients reach host N at 10.213.0.N, other nodes at 10.213.1.N.
const NETWORK: [u8; 2] = [10, 213];
/// Maximum hosts of a cluster: the certificate of its nodes names the address of each.
pub const HOSTS_MAX: u8 = 9;
/// This machine in the clients' network.
const OURS: u8 = 254;

/// The hosts, removed when dropped. A machine can have one bench with hosts at a time.
pub struct Hosts {
    count: u8,
}

impl Hosts {
    /// Creates so many, after removing those of a killed bench.
    ///
    /// # Errors
    ///
    /// For more than [`HOSTS_MAX`]; if this is not root, or `ip` is missing or fails.
    pub fn make(count: u8) -> Result<Self> {
        ensure!(count <= HOSTS_MAX, "at most {HOSTS_MAX} hosts, not {count}");
        let hosts = Self { count };
        hosts.remove();
        hosts.build().context("create the network namespaces (needs root and iproute2)")?;
        Ok(hosts)
    }

    fn build(&self) -> Result<()> {
        for bridge in [CLIENTS, PEERS] {
            ip(&["link", "add", bridge, "type", "bridge"])?;
            ip(&["link", "set", bridge, "up"])?;
        }
        ip(&["addr", "add", &format!("{}/24", address(0, OURS)), "dev", CLIENTS])?;
        for number in 1..=self.count {
            let host = name(number);
            ip(&["netns", "add", &host])?;
            ip(&["-n", &host, "link", "set", "lo", "up"])?;
            for (network, (bridge, inside)) in (0..).zip([(CLIENTS, "clients"), (PEERS, "peers")]) {
                let outside = cable(bridge, number);
                ip(&["link", "add", &outside, "type", "veth", "peer", "name", inside, "netns", &host])?;
                ip(&["link", "set", &outside, "master", bridge, "up"])?;
                let own = format!("{}/24", address(network, number));
                ip(&["-n", &host, "addr", "add", &own, "dev", inside])?;
                ip(&["-n", &host, "link", "set", inside, "up"])?;
            }
        }
        Ok(())
    }

    /// Address for clients.
    pub fn for_clients(number: u8) -> IpAddr {
        address(0, number).into()
    }

    /// Address for other nodes.
    pub fn for_peers(number: u8) -> IpAddr {
        address(1, number).into()
    }

    /// Pulls the cable to the other nodes.
    pub fn cut(number: u8) -> Result<()> {
        ip(&["link", "set", &cable(PEERS, number), "nomaster"])
    }

    /// Plugs it in again.
    pub fn join(number: u8) -> Result<()> {
        ip(&["link", "set", &cable(PEERS, number), "master", PEERS])
    }

    /// Command prefix that runs a program there, in the same process.
    pub fn runs_in(number: u8) -> [String; 4] {
        ["ip".to_owned(), "netns".to_owned(), "exec".to_owned(), name(number)]
    }

    /// A cable ends with its host.
    fn remove(&self) {
        let quietly = |arguments: &[&str]| {
            let mut command = Command::new("ip");
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            drop(command.status());
        };
        for number in 1..=self.count {
            quietly(&["netns", "del", &name(number)]);
            for bridge in [CLIENTS, PEERS] {
                quietly(&["link", "del", &cable(bridge, number)]);
            }
        }
        for bridge in [CLIENTS, PEERS] {
            quietly(&["link", "del", bridge]);
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.remove();
    }
}

fn name(number: u8) -> String {
    format!("tfb-{number}")
}

/// At most 15 characters, the limit of the kernel.
fn cable(bridge: &str, number: u8) -> String {
    format!("{bridge}-{number}")
}

fn address(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], network, host)
}

fn ip(arguments: &[&str]) -> Result<()> {
    command(Command::new("ip").args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cable_names_fit_the_limit_of_the_kernel() {
        for bridge in [CLIENTS, PEERS] {
            assert!(cable(bridge, 9).len() <= 15, "{bridge}");
        }
    }

    #[test]
    fn clients_and_peers_reach_a_host_at_different_addresses() {
        assert_eq!(Hosts::for_clients(3).to_string(), "10.213.0.3");
        assert_eq!(Hosts::for_peers(3).to_string(), "10.213.1.3");
    }
}
