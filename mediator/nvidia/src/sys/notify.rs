//! Seccomp user notification: some `ioctl`s of a process wait until a supervisor has checked them.

use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::net::{RecvFlags, SendFlags};
use turnstile_preload_wire::descriptors::{receive, send};

/// A call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The kernel's number of the notification.
    pub(crate) id: u64,
    /// The thread that makes it, in the supervisor's namespace; zero if it has no number there.
    pub(crate) thread: u32,
    /// Its request, of which the kernel uses 32 bits.
    pub(crate) request: u32,
    /// Its third argument.
    pub(crate) argument: u64,
}

/// Requests that the filter catches, by their low byte: the driver reads no more of it. SOURCE:
/// `nv.c`, `nvidia_ioctl`: `_IOC_NR` and `_IOC_SIZE` alone.
pub(crate) const WATCHED: [u8; 4] = [
    super::abi::escape::ALLOC,
    super::abi::escape::FREE,
    super::abi::escape::CONTROL,
    super::abi::escape::XFER,
];

/// SOURCE: `linux/audit.h`: AUDIT_ARCH_X86_64; its 32-bit programs are AUDIT_ARCH_I386.
#[cfg(target_arch = "x86_64")]
const ARCHES: (u32, u32) = (0xc000_003e, 0x4000_0003);
/// SOURCE: `linux/audit.h`: AUDIT_ARCH_AARCH64; its 32-bit programs are AUDIT_ARCH_ARM.
#[cfg(target_arch = "aarch64")]
const ARCHES: (u32, u32) = (0xc000_00b7, 0x4000_0028);
/// `ioctl` of 32-bit programs, of either machine. SOURCE: `asm/unistd_32.h`.
const IOCTL_32: u32 = 54;
/// `ioctl` of the x32 ABI; nothing on other machines. SOURCE: `asm/unistd_x32.h`.
const IOCTL_X32: u32 = 0x4000_0000 + 514;

/// SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: caller and supervisor take turns on one processor. SOURCE:
/// `linux/seccomp.h`.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// One instruction of the classic filter machine; jumps count from the next one.
const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    // CAST: codes of that machine have 16 bits.
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// The filter. It decides on all calls but `ioctl` by machine and number alone; the kernel caches
/// these decisions.
const FILTER: [libc::sock_filter; 16] = {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    // CAST: offsets within a structure of 64 bytes.
    const MACHINE: u32 = offset_of!(libc::seccomp_data, arch) as u32;
    const NUMBER: u32 = offset_of!(libc::seccomp_data, nr) as u32;
    // The low half of the second argument: it is first, as these machines are little-endian.
    const REQUEST: u32 = offset_of!(libc::seccomp_data, args) as u32 + 8;
    [
        op(LOAD, 0, 0, MACHINE),
        op(IS, 0, 3, ARCHES.0),
        op(LOAD, 0, 0, NUMBER),
        op(IS, 4, 0, libc::SYS_ioctl as u32),
        op(IS, 3, 9, IOCTL_X32),
        // 5: another machine
        op(IS, 0, 8, ARCHES.1),
        op(LOAD, 0, 0, NUMBER),
        op(IS, 0, 6, IOCTL_32),
        // 8: an ioctl
        op(LOAD, 0, 0, REQUEST),
        op(AND, 0, 0, 0xff),
        op(IS, 4, 0, WATCHED[0] as u32),
        op(IS, 3, 0, WATCHED[1] as u32),
        op(IS, 2, 0, WATCHED[2] as u32),
        op(IS, 1, 0, WATCHED[3] as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    ]
};

fn checked(result: i64) -> io::Result<i64> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Filters the calling thread and all that it starts from now on; returns the supervisor's end.
/// Allocates nothing, so that it may be called between fork and exec.
fn install() -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: FILTER.len() as u16,
        filter: FILTER.as_ptr().cast_mut(),
    };
    let set = |flags: libc::c_ulong| {
        // SAFETY: the kernel copies the program, which is a constant, and writes to no memory of
        // this process.
        checked(unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        })
    };
    // Keeps speculation on in filtered processes: before Linux 5.16 a filter turned it off.
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // A caught signal does not interrupt a call while the supervisor checks it. Since Linux 5.19.
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let either = || match set(listen | killable) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set(listen),
        result => result,
    };
    let fd = match either() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // Without CAP_SYS_ADMIN the kernel requires the promise that no exec gains rights, as
            // setuid programs would.
            // SAFETY: the call takes numbers.
            checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
            either()
        }
        result => result,
    }?;
    // CAST: a descriptor.
    // SAFETY: the call returned a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Filters the calling thread alone, as the threads of a tenant are filtered.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn filter_this_thread() -> io::Result<RawListener> {
    RawListener::new(install()?)
}

/// Socket on which the listener of a command's filter arrives.
#[derive(Debug)]
pub(crate) struct Pending(UnixStream);

/// Makes `command` run filtered.
///
/// # Errors
/// As socketpair(2).
pub(crate) fn filter(command: &mut Command) -> io::Result<Pending> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let install_and_tell = move || {
        let listener = install();
        let result = match &listener {
            Ok(listener) => tell(&theirs, 0, Some(listener.as_fd())),
            Err(error) => tell(&theirs, error.raw_os_error().unwrap_or(libc::EIO), None),
        };
        listener.and(result)
    };
    // SAFETY: it runs between fork and exec, and only makes system calls: it neither allocates nor
    // takes a lock, and owns what it refers to.
    unsafe { command.pre_exec(install_and_tell) };
    Ok(Pending(ours))
}

fn tell(socket: &UnixStream, errno: i32, listener: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds = listener.map(|fd| [fd]);
    let fds = fds.as_ref().map_or(&[][..], <[_; 1]>::as_slice);
    send(socket, &errno.to_ne_bytes(), fds, SendFlags::empty())?;
    Ok(())
}

impl Pending {
    /// The listener, once the command was started. An error if the filter was refused, so that the
    /// command was not started. None if the command failed before that.
    pub(crate) fn take(self) -> Option<io::Result<RawListener>> {
        let mut bytes = [0; 4];
        let (got, mut fds) = receive(&self.0, &mut bytes, RecvFlags::empty()).ok()?;
        if got != 4 {
            return None;
        }
        Some(match fds.pop() {
            Some(fd) => RawListener::new(fd),
            None => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(bytes))),
        })
    }
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct RawListener {
    fd: OwnedFd,
    /// As large as the kernel's structures, which may be larger than those in `libc`.
    notification: Vec<u64>,
    answer: Vec<u64>,
}

impl RawListener {
    /// # Errors
    /// If the kernel has no user notification.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: a structure of integers, of which zero bytes are a value.
        let mut sizes: libc::seccomp_notif_sizes = unsafe { zeroed() };
        // SAFETY: the kernel writes that structure, which is borrowed for the whole call.
        checked(unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_GET_NOTIF_SIZES,
                0,
                &raw mut sizes,
            )
        })?;
        // SAFETY: the call takes a number. A kernel before 6.6 refuses it and wakes the slower way.
        unsafe {
            libc::ioctl(
                fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS as _,
                SYNC_WAKE_UP,
            )
        };
        let room = |theirs: u16, ours: usize| vec![0; usize::from(theirs).max(ours).div_ceil(8)];
        Ok(Self {
            fd,
            notification: room(sizes.seccomp_notif, size_of::<libc::seccomp_notif>()),
            answer: room(
                sizes.seccomp_notif_resp,
                size_of::<libc::seccomp_notif_resp>(),
            ),
        })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Receives a call; blocks while none is pending. None if its thread was killed meanwhile.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Call>> {
        self.notification.fill(0);
        let at = self.notification.as_mut_ptr().cast::<libc::seccomp_notif>();
        // SAFETY: the kernel writes its own structure, which fits (`new`), zeroed as it requires.
        let received =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, at) };
        match checked(received.into()) {
            Ok(_) => {}
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT | libc::EINTR) => Ok(None),
                    _ => Err(error),
                };
            }
        }
        // SAFETY: it fits and is aligned to 8 bytes; a structure of integers, which the kernel
        // filled.
        let notification = unsafe { at.read() };
        Ok(Some(Call {
            id: notification.id,
            thread: notification.pid,
            // CAST: the kernel uses 32 bits of it as well.
            request: notification.data.args[1] as u32,
            argument: notification.data.args[2],
        }))
    }

    /// Whether the call still waits. Then all memory that was read until now was its process's.
    pub(crate) fn waits(&self, id: u64) -> bool {
        // SAFETY: the kernel reads eight bytes, which are borrowed for the whole call.
        let valid = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _,
                &raw const id,
            )
        };
        valid == 0
    }

    /// Lets the call proceed. False if its thread was killed or interrupted meanwhile.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn proceed(&mut self, id: u64) -> io::Result<bool> {
        // CAST: the flag is 1.
        self.send(id, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32)
    }

    /// Answers the call instead of the kernel: zero, or an error number. False as for
    /// [`Self::proceed`].
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn answer(&mut self, id: u64, errno: i32) -> io::Result<bool> {
        self.send(id, -errno, 0)
    }

    fn send(&mut self, id: u64, error: i32, flags: u32) -> io::Result<bool> {
        self.answer.fill(0);
        let at = self.answer.as_mut_ptr().cast::<libc::seccomp_notif_resp>();
        let answer = libc::seccomp_notif_resp {
            id,
            val: 0,
            error,
            flags,
        };
        // SAFETY: room for it and aligned to 8 bytes (`new`).
        unsafe { at.write(answer) };
        // SAFETY: the kernel reads its own structure, for which there is room (`new`).
        let sent =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, at) };
        match checked(sent.into()) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the kernel has user notification.
pub(crate) fn available() -> bool {
    let action: u32 = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: the kernel reads four bytes, which are borrowed for the whole call.
    let known = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    known == 0
}

/// Copies memory of another process; false unless all of it exists and is readable.
pub(crate) fn read_memory(process: u32, address: u64, bytes: &mut [u8]) -> bool {
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        // CAST: an address of the other process, of which the kernel checks every byte.
        iov_base: address as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // CAST: process numbers are below 2^22.
    // SAFETY: the kernel writes to `bytes` alone, which is borrowed for the whole call; the other
    // address is not in this process.
    let got = unsafe {
        libc::process_vm_readv(
            process as libc::pid_t,
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    usize::try_from(got).is_ok_and(|got| got == bytes.len())
}

/// For tests: calls with the driver's numbers, made on a file that refuses them.
#[cfg(test)]
pub(crate) mod acting {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// Makes a call of `number` and type `kind` with `argument`, which the file has to refuse.
    pub(crate) fn call<T>(file: &File, kind: u8, number: u8, argument: &mut T) {
        let answered = attempt(file, kind, number, argument);
        assert_eq!(answered, Some(libc::ENOTTY), "it came to the file");
    }

    /// The same, answered by the file or the supervisor; returns the error number, if there is one.
    pub(crate) fn attempt<T>(file: &File, kind: u8, number: u8, argument: &mut T) -> Option<i32> {
        let request =
            3 << 30 | (size_of::<T>() as u64) << 16 | u64::from(kind) << 8 | u64::from(number);
        // SAFETY: `/dev/null` knows no call of these numbers, so that it does not use the argument.
        // A supervisor that answers instead writes within the structure of its number.
        let rc =
            unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
        if rc == 0 {
            return None;
        }
        std::io::Error::last_os_error().raw_os_error()
    }
}
