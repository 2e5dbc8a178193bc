//! The process at the other end of a connection on this machine.

use std::fs;
use std::net::SocketAddr;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// Sizes in the kernel's `sock_diag(7)`.
const HEADER_BYTES: usize = 16;
const ADDRESSES_BYTES: usize = 48;
/// Offset of the inode in an answer: after the header, four bytes, the addresses and four integers.
const INODE_AT: usize = HEADER_BYTES + 4 + ADDRESSES_BYTES + 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;

/// The position among `processes` of the one that has the socket with the address `own`, connected to `other`.
pub fn owner(processes: &[u32], own: SocketAddr, other: SocketAddr) -> Option<usize> {
    let socket = format!("socket:[{}]", inode(own, other)?);
    processes.iter().position(|process| {
        let files = fs::read_dir(format!("/proc/{process}/fd"));
        files.is_ok_and(|files| {
            files
                .flatten()
                .any(|file| fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()))
        })
    })
}

/// The inode of one socket. `/proc/net/tcp` has it too, and takes milliseconds to read.
fn inode(own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let (SocketAddr::V4(own), SocketAddr::V4(other)) = (own, other) else { return None };
    let mut request = Vec::with_capacity(HEADER_BYTES + 8 + ADDRESSES_BYTES);
    request.extend(u32::try_from(request.capacity()).ok()?.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence, and the kernel as receiver.
    request.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    request.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    // Every state.
    request.extend([u8::MAX; 4]);
    request.extend(own.port().to_be_bytes());
    request.extend(other.port().to_be_bytes());
    for address in [own.ip(), other.ip()] {
        request.extend(address.octets());
        request.extend([0; 12]);
    }
    // Any interface, and no cookie.
    request.extend([0; 4]);
    request.extend([u8::MAX; 8]);
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    send(&kernel, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::empty()).ok()?;
    let answer = answer.get(..length)?;
    // An error has another type.
    if answer.get(4..6)? != SOCK_DIAG_BY_FAMILY.to_ne_bytes() {
        return None;
    }
    Some(u32::from_ne_bytes(answer.get(INODE_AT..INODE_AT + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn socket_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let _near = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        let (far, remote) = listener.accept().expect("accepted");
        let local = far.local_addr().expect("address");
        assert_eq!(owner(&[1, std::process::id()], remote, local), Some(1));
        assert_eq!(owner(&[2], remote, local), None, "of another process");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("address");
        assert_eq!(owner(&[std::process::id()], free, local), None, "no such connection");
    }
}
