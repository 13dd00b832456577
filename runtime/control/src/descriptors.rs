//! Collects one descriptor from each peer over a listening socket of this rank.
//!
//! Each peer connects, sends its rank, then the descriptor. All connections are served as their packets
//! arrive. A peer that stops between two packets therefore delays no other, and the error names it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::channel::{Channel, ReceiveOutcome, accept_connection, is_same_user};
use crate::error::{Result, RunError};
use crate::heartbeat::TICK;

struct DescriptorPeer {
    channel: Channel,
    /// Its rank, once it has sent it.
    rank: Option<u32>,
    /// Whether nothing more is expected from the connection.
    is_done: bool,
}

/// The descriptors of the ranks in `expected`, in this order. `what` names the descriptors in errors. Fails
/// if a rank has not sent its descriptor within `limit`, is gone, or sends something else. The error prefers
/// a rank that began and did not finish over one that did not connect.
pub fn collect_descriptors(
    listener: &OwnedFd,
    expected: &[u32],
    what: &str,
    limit: Duration,
) -> Result<Vec<OwnedFd>> {
    let until = Instant::now() + limit;
    let mut received: Vec<Option<OwnedFd>> = expected.iter().map(|_| None).collect();
    let mut peers: Vec<DescriptorPeer> = Vec::new();
    while received.iter().any(Option::is_none) {
        if Instant::now() >= until {
            let expected = expected.iter().zip(&received);
            let missing: Vec<u32> = expected.filter(|(_, fd)| fd.is_none()).map(|(&rank, _)| rank).collect();
            let began = peers.iter().filter_map(|peer| peer.rank).find(|rank| missing.contains(rank));
            let rank = began.or(missing.first().copied()).unwrap_or_default();
            let location = format!("before passing {what}");
            return Err(RunError::Stuck { rank, at: location, limit_ms: limit.as_millis() as u64 });
        }
        wait_packets(listener, &peers)?;
        while let Some(fd) = accept_connection(listener, Instant::now())? {
            if is_same_user(&fd)? {
                peers.push(DescriptorPeer { channel: Channel::new(fd, 0), rank: None, is_done: false });
            }
        }
        for peer in peers.iter_mut().filter(|peer| !peer.is_done) {
            let Some((rank, fd)) = peer.receive_descriptor(what)? else { continue };
            if let Some(position) = expected.iter().position(|r| *r == rank) {
                received[position] = Some(fd);
            }
        }
    }
    Ok(received.into_iter().flatten().collect())
}

/// Waits for a connection or a packet, for at most one tick.
fn wait_packets(listener: &OwnedFd, peers: &[DescriptorPeer]) -> Result<()> {
    let listened = peers.iter().filter(|peer| !peer.is_done).map(|peer| peer.channel.fd());
    let sockets = std::iter::once(listener.as_fd()).chain(listened);
    let mut fds: Vec<PollFd> = sockets.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut fds, PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(e) => Err(RunError::from_system_call("waiting for descriptors", "poll", e)),
    }
}

impl DescriptorPeer {
    /// Takes the next packet, if it has arrived. Returns the rank and its descriptor once both have arrived.
    fn receive_descriptor(&mut self, what: &str) -> Result<Option<(u32, OwnedFd)>> {
        let Some(rank) = self.rank else {
            match self.channel.try_receive::<u32>() {
                Ok(ReceiveOutcome::Message(rank)) => {
                    self.rank = Some(rank);
                    self.channel.set_peer(rank);
                }
                Ok(ReceiveOutcome::Nothing) => {}
                // A process that sends no rank is not a rank.
                Ok(ReceiveOutcome::End) | Err(RunError::Protocol { .. }) => self.is_done = true,
                Err(error) => return Err(error),
            }
            return Ok(None);
        };
        match self.channel.try_receive_fds()? {
            ReceiveOutcome::Nothing => Ok(None),
            ReceiveOutcome::Message(mut fds) => {
                self.is_done = true;
                Ok(fds.pop().map(|fd| (rank, fd)))
            }
            ReceiveOutcome::End => {
                let when = format!("before passing {what}");
                Err(RunError::DiedOutside { rank, how: "its process is gone".into(), when })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen, socket,
    };

    use super::*;

    fn open() -> OwnedFd {
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket")
    }

    /// A listening socket and its address, for peers that connect.
    fn meeting() -> (OwnedFd, impl Fn() -> Channel) {
        let listener = open();
        bind(listener.as_raw_fd(), &UnixAddr::new_unnamed()).expect("a name");
        listen(&listener, Backlog::new(16).expect("a number")).expect("it listens");
        let address: UnixAddr = getsockname(listener.as_raw_fd()).expect("its name");
        let join = move || {
            let fd = open();
            connect(fd.as_raw_fd(), &address).expect("it is there");
            Channel::new(fd, 0)
        };
        (listener, join)
    }

    fn send_all(channel: &Channel, rank: u32) {
        channel.send(&rank).expect("sent");
        let fd = std::fs::File::open("/dev/null").expect("it is there");
        channel.send_fds(&[fd.as_fd()]).expect("sent");
    }

    const SOON: Duration = Duration::from_millis(200);

    /// The behaviour of a peer that does not send everything.
    #[derive(Clone, Copy, Debug)]
    enum Stops {
        BeforeConnecting,
        BeforeNumber,
        BeforeDescriptor,
        InsteadOfDescriptor,
        Closing,
    }

    /// Every rank stops at every point, before and after the others connect: the error names this rank.
    #[test]
    fn a_peer_that_stops_between_two_packets_is_named_and_delays_no_other() {
        use Stops::{BeforeConnecting, BeforeDescriptor, BeforeNumber, Closing, InsteadOfDescriptor};
        for stops in [BeforeConnecting, BeforeNumber, BeforeDescriptor, InsteadOfDescriptor, Closing] {
            for victim in 1..4 {
                for is_first in [true, false] {
                    let (listener, join) = meeting();
                    let mut open = Vec::new();
                    let stop = |open: &mut Vec<Channel>| {
                        if matches!(stops, BeforeConnecting) {
                            return;
                        }
                        let channel = join();
                        if !matches!(stops, BeforeNumber) {
                            channel.send(&victim).expect("sent");
                        }
                        if matches!(stops, InsteadOfDescriptor) {
                            channel.send(&"something else").expect("sent");
                        }
                        if !matches!(stops, Closing) {
                            open.push(channel);
                        }
                    };
                    if is_first {
                        stop(&mut open);
                    }
                    for rank in (1..4).filter(|rank| *rank != victim) {
                        let channel = join();
                        send_all(&channel, rank);
                        open.push(channel);
                    }
                    if !is_first {
                        stop(&mut open);
                    }
                    let error = collect_descriptors(&listener, &[1, 2, 3], "its memory", SOON);
                    let error = error.expect_err("one is missing");
                    assert_eq!(error.culprit(), Some(victim), "{stops:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn descriptors_come_in_the_order_of_the_ranks_past_a_stranger_that_says_nothing() {
        let (listener, join) = meeting();
        let stranger = join();
        let channels: Vec<Channel> = [3, 0, 2]
            .map(|rank| (rank, join()))
            .map(|(rank, channel)| {
                send_all(&channel, rank);
                channel
            })
            .into();
        let received = collect_descriptors(&listener, &[0, 2, 3], "its memory", Duration::from_secs(60));
        assert_eq!(received.expect("all are there").len(), 3);
        drop((stranger, channels));
    }
}
