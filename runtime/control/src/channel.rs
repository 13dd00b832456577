//! Control sockets: messages between the coordinator of a run and its ranks.
//!
//! A message is one packet of a Unix `SOCK_SEQPACKET` socket: a value as JSON. Descriptors of shared memory
//! travel in packets of their own after the message that announces them.
//!
//! Reads never block in the system: they take the packets that have arrived, and wait for more by polling,
//! with a deadline. A process that serves several peers takes packets as they come ([`Channel::try_receive`],
//! [`Channel::try_receive_fds`]), so a peer that stops between two packets delays no other.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    ControlMessage, MsgFlags, Shutdown, SockFlag, accept4, getsockopt, recv, sendmsg, setsockopt, shutdown,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::getuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};

use crate::error::{Result, RunError};

pub(crate) const PROTOCOL: u32 = 5;
const MAX_MESSAGE_BYTES: usize = 128 << 10;
/// Descriptors in one packet.
const BATCH: usize = 64;
/// The descriptors that the system allows in one packet.
const MAX_PACKET_FDS: usize = 253;
/// How long a send waits for the receiver to make room for a message.
const SENDING: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum CoordinatorMessage {
    /// Describes the run and the sizes of the segments whose descriptors follow.
    Welcome(WelcomeMessage),
    /// Contents may differ between ranks: each rank must send digests of every byte.
    Digest,
    /// All ranks run this plan and version.
    Proceed,
    /// All ranks are ready.
    Start,
    /// The run has ended for all ranks: successfully, or with this error.
    Verdict(#[serde(serialize_with = "serialize_bounded_verdict")] Option<RunError>),
}

/// The shared memory of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WelcomeMessage {
    pub rank: u32,
    pub ranks: u32,
    pub groups: usize,
    /// Bytes of each symmetric arena.
    pub arena: usize,
    /// Bytes of each segment of the task, for a rank that the launcher started.
    pub task: Vec<usize>,
    /// The number of files that the task names.
    pub files: usize,
    /// The timeout of every wait.
    pub limit: Duration,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum RankMessage {
    /// The first message of a rank that another launcher started. The rank would wait for the others for
    /// another `left_ms` milliseconds.
    Join {
        rank: u32,
        ranks: u32,
        run: String,
        left_ms: u64,
    },
    /// The only message of a rank that was to join and cannot begin.
    Decline {
        rank: u32,
        ranks: u32,
        run: String,
        #[serde(serialize_with = "serialize_bounded")]
        error: RunError,
    },
    Hello(RankIdentity),
    /// The digests of its contents, by name.
    Digests(Vec<(String, String)>),
    /// The rank's memory is loaded.
    Ready,
    /// A piece of the rank's answer to the launcher, as text.
    Answer(String),
    Done,
    Failed(#[serde(serialize_with = "serialize_bounded")] RunError),
}

/// The maximum size of an error in a message.
const MAX_ERROR_BYTES: usize = MAX_MESSAGE_BYTES / 2;

fn serialize_bounded<S: Serializer>(error: &RunError, serializer: S) -> Result<S::Ok, S::Error> {
    error.with_bounded_size(0, MAX_ERROR_BYTES).serialize(serializer)
}

fn serialize_bounded_verdict<S: Serializer>(
    error: &Option<RunError>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    error.as_ref().map(|error| error.with_bounded_size(0, MAX_ERROR_BYTES)).serialize(serializer)
}

/// The data that must be equal on all ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct RankIdentity {
    pub protocol: u32,
    pub version: String,
    /// The hash of the plan.
    pub plan: String,
    /// Properties that distinguish the plan from others in error messages.
    pub about: Vec<(String, String)>,
    /// Other settings that must be equal.
    pub terms: Vec<(String, String)>,
    /// The names of terms that are contents: their identities are compared first, and digests if these
    /// differ.
    pub contents: Vec<String>,
}

#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    /// The rank of the peer process, for messages.
    peer: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceiveOutcome<T> {
    Nothing,
    Message(T),
    /// The peer closed the connection, and everything that it sent has been read.
    End,
}

struct ChannelPacket {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Channel {
    pub fn new(fd: OwnedFd, peer: u32) -> Self {
        set_send_timeout(&fd);
        Channel { fd, peer }
    }

    pub fn set_peer(&mut self, peer: u32) {
        self.peer = peer;
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The process that listened or connected at the other end, if the system tells.
    pub fn peer_process(&self) -> Option<u32> {
        let peer = getsockopt(&self.fd, sockopt::PeerCredentials).ok()?;
        u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0)
    }

    /// Sends a message. A closed connection is no error here: receiving detects it.
    pub fn send(&self, message: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(message).map_err(|e| self.protocol_error(e))?;
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(self.protocol_error(format!(
                "a message of {} bytes exceeds the maximum of {MAX_MESSAGE_BYTES} bytes",
                bytes.len()
            )));
        }
        self.send_packet(&bytes, &[])
    }

    /// Sends descriptors, after a message that announces their number.
    pub fn send_fds(&self, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        raw.chunks(BATCH).try_for_each(|batch| self.send_packet(b"fds", batch))
    }

    fn send_packet(&self, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        loop {
            let data = [IoSlice::new(bytes)];
            match sendmsg::<()>(self.fd.as_raw_fd(), &data, control, MsgFlags::MSG_NOSIGNAL, None) {
                Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    return Err(self.protocol_error("the peer process does not read its messages"));
                }
                Err(e) => return Err(self.call_error("sending a message", "sendmsg", e)),
            }
        }
    }

    /// The next message; `None` when the peer closed the connection. Fails if nothing came before `deadline`,
    /// or the packet is not a message.
    pub fn receive<T: DeserializeOwned>(&self, deadline: Option<Instant>) -> Result<Option<T>> {
        loop {
            match self.try_receive()? {
                ReceiveOutcome::Message(message) => return Ok(Some(message)),
                ReceiveOutcome::End => return Ok(None),
                ReceiveOutcome::Nothing => self.wait_packet(deadline)?,
            }
        }
    }

    /// The next message, if it has arrived. Never waits.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<ReceiveOutcome<T>> {
        Ok(match self.take_packet()? {
            ReceiveOutcome::Message(packet) => ReceiveOutcome::Message(
                serde_json::from_slice(&packet.bytes).map_err(|e| self.protocol_error(e))?,
            ),
            ReceiveOutcome::Nothing => ReceiveOutcome::Nothing,
            ReceiveOutcome::End => ReceiveOutcome::End,
        })
    }

    /// `count` descriptors that were sent after the last message; `None` when the peer closed the connection before.
    pub fn receive_fds(&self, count: usize, deadline: Instant) -> Result<Option<Vec<OwnedFd>>> {
        // The peer states the number, so it reserves no memory.
        let mut fds = Vec::new();
        while fds.len() < count {
            match self.try_receive_fds()? {
                ReceiveOutcome::Message(more) => fds.extend(more),
                ReceiveOutcome::End => return Ok(None),
                ReceiveOutcome::Nothing => self.wait_packet(Some(deadline))?,
            }
        }
        Ok(Some(fds))
    }

    /// The descriptors of the next packet, if it has arrived. Never waits. Fails if a message came instead.
    pub fn try_receive_fds(&self) -> Result<ReceiveOutcome<Vec<OwnedFd>>> {
        match self.take_packet()? {
            ReceiveOutcome::Message(packet) if packet.fds.is_empty() => {
                Err(self.protocol_error("expected descriptors of shared memory, found a message"))
            }
            ReceiveOutcome::Message(packet) => Ok(ReceiveOutcome::Message(packet.fds)),
            ReceiveOutcome::Nothing => Ok(ReceiveOutcome::Nothing),
            ReceiveOutcome::End => Ok(ReceiveOutcome::End),
        }
    }

    fn wait_packet(&self, deadline: Option<Instant>) -> Result<()> {
        if self.wait_readable(deadline)? {
            Ok(())
        } else {
            Err(self.protocol_error("no message arrived within the timeout"))
        }
    }

    fn take_packet(&self) -> Result<ReceiveOutcome<ChannelPacket>> {
        let mut was_reset = false;
        loop {
            // The buffer has the size of the packet, so that listening threads need little memory.
            let ahead = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
            let size = match recv(self.fd.as_raw_fd(), &mut [], ahead) {
                Ok(size) => size,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Ok(ReceiveOutcome::Nothing),
                // The peer closed with unread messages. Messages that it sent before are still there.
                Err(Errno::ECONNRESET) if !was_reset => {
                    was_reset = true;
                    continue;
                }
                Err(Errno::ECONNRESET) => return Ok(ReceiveOutcome::End),
                Err(e) => return Err(self.call_error("receiving a message", "recv", e)),
            };
            let mut bytes = vec![0; size.clamp(1, MAX_MESSAGE_BYTES)];
            let (len, flags, fds) = match receive_packet(self.fd.as_fd(), &mut bytes) {
                Ok(received) => received,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Ok(ReceiveOutcome::Nothing),
                Err(e) => return Err(self.call_error("receiving a message", "recvmsg", e)),
            };
            if flags.contains(MsgFlags::MSG_CTRUNC) {
                // There is room for all descriptors of a packet, so this process cannot open any more.
                let action = "receiving the descriptors of shared memory";
                return Err(self.call_error(action, "recvmsg", Errno::EMFILE));
            }
            if flags.contains(MsgFlags::MSG_TRUNC) {
                let maximum = format!("a message exceeds the maximum of {MAX_MESSAGE_BYTES} bytes");
                return Err(self.protocol_error(maximum));
            }
            if fds.len() > BATCH {
                let count = fds.len();
                return Err(self
                    .protocol_error(format!("a packet has {count} descriptors, expected at most {BATCH}")));
            }
            if len == 0 {
                return Ok(ReceiveOutcome::End);
            }
            bytes.truncate(len);
            return Ok(ReceiveOutcome::Message(ChannelPacket { bytes, fds }));
        }
    }

    /// Waits for a message or the end of the connection; returns whether one came before `deadline`.
    pub fn wait_readable(&self, deadline: Option<Instant>) -> Result<bool> {
        loop {
            let timeout = match deadline {
                None => PollTimeout::NONE,
                Some(deadline) => {
                    let remaining = deadline.saturating_duration_since(Instant::now());
                    PollTimeout::try_from(remaining.as_millis().min(1 << 30) + 1).unwrap_or(PollTimeout::MAX)
                }
            };
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if deadline.is_some_and(|d| Instant::now() >= d) => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(e) => return Err(self.call_error("waiting for a message", "poll", e)),
            }
        }
    }

    /// Closes the connection: waits of both processes end, and no message follows.
    pub fn close(&self) {
        // A connection that is closed already stays closed.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }

    /// The error of a system call on this socket. Failures of the environment are not the fault of the peer.
    fn call_error(&self, what: &str, call: &str, error: Errno) -> RunError {
        match RunError::from_system_call(what, call, error) {
            RunError::System { error, .. } => self.protocol_error(error),
            refused => refused,
        }
    }

    fn protocol_error(&self, detail: impl std::fmt::Display) -> RunError {
        RunError::Protocol { rank: self.peer, detail: detail.to_string() }
    }
}

/// Receives one packet into `bytes`, if it has arrived: its length, its flags and all of its descriptors, also if the
/// packet is truncated.
fn receive_packet(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, MsgFlags, Vec<OwnedFd>)> {
    // Control messages are aligned like their headers.
    let mut control = [0u64; (MAX_PACKET_FDS * size_of::<RawFd>()).div_ceil(8) + 8];
    let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a valid header, of a message without a name, data and control messages.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut data;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header describes two buffers that outlive the call, with their sizes.
    let len = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) })?;
    let mut fds = Vec::new();
    // SAFETY: the kernel has written whole control messages into the buffer, and their length into the header. It made
    // the descriptors for this process; nothing else owns them.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while let Some(&libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type }) = message.as_ref() {
            if (cmsg_level, cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = (cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let first = libc::CMSG_DATA(message).cast::<RawFd>();
                fds.extend((0..count).map(|i| OwnedFd::from_raw_fd(first.add(i).read_unaligned())));
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
    }
    Ok((usize::try_from(len).unwrap_or(0), MsgFlags::from_bits_truncate(header.msg_flags), fds))
}

/// Bounds how long connecting and sending wait for the peer, which may be stopped.
pub(crate) fn set_send_timeout(fd: &OwnedFd) {
    let limit = TimeVal::milliseconds(SENDING.as_millis() as i64);
    // If the system refuses the option, sends have no bound; messages are few and fit the buffer.
    let _ = setsockopt(fd, sockopt::SendTimeout, &limit);
}

/// Whether the peer process belongs to this user.
pub fn is_same_user(fd: &OwnedFd) -> Result<bool> {
    let peer = getsockopt(fd, sockopt::PeerCredentials)
        .map_err(|e| RunError::from_system_call("asking for the user of a peer", "getsockopt", e))?;
    Ok(peer.uid() == getuid().as_raw())
}

/// The next connection to `listener`; `None` if none came before `until`.
pub fn accept_connection(listener: &OwnedFd, until: Instant) -> Result<Option<OwnedFd>> {
    loop {
        let remaining = until.saturating_duration_since(Instant::now()).as_millis().min(1 << 30);
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX)) {
            Ok(0) if remaining == 0 => return Ok(None),
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(RunError::from_system_call("waiting for ranks", "poll", e)),
        }
        match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // SAFETY: the kernel made this descriptor for this process; nothing else owns it.
            Ok(fd) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(Errno::EINTR | Errno::ECONNABORTED) => {}
            Err(e) => return Err(RunError::from_system_call("accepting a rank", "accept4", e)),
        }
    }
}

#[cfg(test)]
impl Channel {
    /// Two connected channels: the peer of the first one is rank 0, that of the second one rank 1.
    pub(crate) fn connected_pair() -> (Channel, Channel) {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (first, second) = pair.expect("sockets");
        (Channel::new(first, 0), Channel::new(second, 1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::{MemorySegment, SegmentAccess};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn messages_and_memory_arrive() {
        let (a, b) = Channel::connected_pair();
        a.send(&RankMessage::Ready).unwrap();
        assert_eq!(b.receive::<RankMessage>(Some(soon())).unwrap(), Some(RankMessage::Ready));
        let segments: Vec<MemorySegment> =
            (0..70).map(|_| MemorySegment::create("test", 8).unwrap()).collect();
        let fds: Vec<BorrowedFd> = segments.iter().filter_map(MemorySegment::fd).collect();
        a.send_fds(&fds).unwrap();
        let got = b.receive_fds(70, soon()).unwrap().expect("the peer has sent them");
        for (i, fd) in got.into_iter().enumerate() {
            let mapped = MemorySegment::map_shared("test", fd, 8, SegmentAccess::ReadWrite).unwrap();
            // SAFETY: both mappings hold 8 bytes.
            unsafe {
                *mapped.as_ptr() = i as u8;
                assert_eq!(*segments[i].as_ptr(), i as u8);
            }
        }
    }

    /// A peer that is stopped between the packets of a message, or inside a message: arrived packets are
    /// taken, and no call waits for the rest.
    #[test]
    fn a_message_of_several_packets_is_taken_as_it_comes() {
        let (a, b) = Channel::connected_pair();
        assert_eq!(b.try_receive::<RankMessage>().unwrap(), ReceiveOutcome::Nothing);
        assert!(matches!(b.try_receive_fds(), Ok(ReceiveOutcome::Nothing)));
        a.send(&RankMessage::Ready).unwrap();
        assert_eq!(b.try_receive::<RankMessage>().unwrap(), ReceiveOutcome::Message(RankMessage::Ready));
        assert!(matches!(b.try_receive_fds(), Ok(ReceiveOutcome::Nothing)));
        let segment = MemorySegment::create("test", 8).unwrap();
        let fd = segment.fd().unwrap();
        a.send_fds(&vec![fd; BATCH + 1]).unwrap();
        for count in [BATCH, 1] {
            assert!(matches!(b.try_receive_fds(), Ok(ReceiveOutcome::Message(fds)) if fds.len() == count));
        }
        assert!(matches!(b.try_receive_fds(), Ok(ReceiveOutcome::Nothing)));
        let packet = serde_json::to_vec(&RankMessage::Done).unwrap();
        for length in 1..packet.len() {
            a.send_packet(&packet[..length], &[]).unwrap();
            let error = b.try_receive::<RankMessage>().unwrap_err();
            assert_eq!(error.culprit(), Some(1), "{error}");
        }
        drop(a);
        assert_eq!(b.try_receive::<RankMessage>().unwrap(), ReceiveOutcome::End);
    }

    #[test]
    fn packets_over_the_limits_are_refused_by_name() {
        let (a, b) = Channel::connected_pair();
        a.send_packet(&vec![b' '; MAX_MESSAGE_BYTES + 1], &[]).unwrap();
        let error = b.try_receive::<RankMessage>().unwrap_err().to_string();
        assert!(error.contains("exceeds the maximum of 131072 bytes"), "{error}");
        let segment = MemorySegment::create("passed too often", 8).unwrap();
        for count in [BATCH + 1, MAX_PACKET_FDS] {
            a.send_packet(b"fds", &vec![segment.fd().unwrap().as_raw_fd(); count]).unwrap();
            let error = b.try_receive_fds().unwrap_err();
            assert_eq!(error.culprit(), Some(1));
            assert!(
                error.to_string().contains(&format!("{count} descriptors, expected at most 64")),
                "{error}"
            );
        }
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let of_segment = links.filter(|link| link.to_string_lossy().contains("passed too often"));
        assert_eq!(of_segment.count(), 1, "received descriptors stay open");
    }

    #[test]
    fn errors_of_any_length_arrive() {
        let (a, b) = Channel::connected_pair();
        let node = "\u{1b}n".repeat(200_000);
        let error = RunError::Step { rank: 1, step: 4, node, op: "take".into(), detail: "bad".into() };
        let error = RunError::Reported { reporter: 0, cause: Box::new(error) };
        a.send(&RankMessage::Failed(error.clone())).unwrap();
        let Some(RankMessage::Failed(found)) = b.receive(Some(soon())).unwrap() else { panic!("an error") };
        b.send(&CoordinatorMessage::Verdict(Some(error))).unwrap();
        let verdict = a.receive(Some(soon())).unwrap();
        assert_eq!(verdict, Some(CoordinatorMessage::Verdict(Some(found.clone()))));
        assert_eq!((found.culprit(), found.reporter(), found.step()), (Some(1), Some(0), Some(4)));
        assert!(found.to_string().ends_with("bad"), "{found}");
    }

    #[test]
    fn silence_rubbish_and_the_end() {
        let (a, b) = Channel::connected_pair();
        assert!(b.receive::<RankMessage>(Some(soon())).is_err());
        a.send(&"rubbish").unwrap();
        assert!(b.receive::<RankMessage>(Some(soon())).is_err());
        drop(a);
        assert_eq!(b.receive::<RankMessage>(None).unwrap(), None);
        b.send(&RankMessage::Ready).unwrap();
    }
}
