//! Tests of the filter on real processes, which make calls with the driver's numbers on
//! `/dev/null`.

use super::*;
use crate::sys::notify::acting::{attempt, call};
use rustix::event::Timespec;
use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Environment variable with the script that this binary runs when a test starts it as a program.
const SCRIPT: &str = "TURNSTILE_TEST_SCRIPT";
const CLIENT: u32 = 0xc1d0_0001;
const DEVICE: u32 = 0x5c00_0001;

/// NVOS21, its handle written by "the driver".
#[repr(C)]
struct Alloc {
    root: u32,
    parent: u32,
    new: AtomicU32,
    class: u32,
    params: u64,
    size: u32,
    status: u32,
}

/// NVOS64.
#[repr(C)]
struct LongAlloc {
    short: Alloc,
    more: [u64; 2],
}

#[repr(C)]
struct Xfer {
    number: u32,
    size: u32,
    argument: u64,
}

/// NVOS54.
#[repr(C)]
struct ControlCall {
    head: [u32; 4],
    params: u64,
    params_size: u32,
    status: u32,
}

/// Requests a control. The answer is a status of the supervisor, or the file's error number.
fn control(file: &File, command: u32, params: &[u32]) -> Answer {
    let mut argument = control_call(command, params);
    match attempt(file, b'F', 0x2a, &mut argument) {
        None => Answer::Status(argument.status),
        Some(errno) => {
            assert_eq!(argument.status, UNTOUCHED);
            Answer::Errno(errno)
        }
    }
}

const UNTOUCHED: u32 = 0xdead;

fn control_call(command: u32, params: &[u32]) -> ControlCall {
    ControlCall {
        head: [CLIENT, 0x10, command, 0],
        params: params.as_ptr() as u64,
        params_size: 4 * params.len() as u32,
        status: UNTOUCHED,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Status(u32),
    Errno(i32),
}

fn alloc(parent: u32, new: u32, class: u32, params: Option<&[u32]>) -> Alloc {
    Alloc {
        root: CLIENT,
        parent,
        new: AtomicU32::new(new),
        class,
        params: params.map_or(0, |params| params.as_ptr() as u64),
        size: 0,
        status: 0,
    }
}

fn group(file: &File, handle: u32, engine: u32) {
    let params = [0, 0, 0, engine, 0, 0, 0, 0];
    let mut argument = alloc(DEVICE, handle, 0xa06c, Some(&params));
    call(file, b'F', 0x2b, &mut argument);
}

fn channel(file: &File, group: u32, handle: u32) {
    let mut argument = LongAlloc {
        short: alloc(group, handle, 0xc86f, None),
        more: [0; 2],
    };
    call(file, b'F', 0x2b, &mut argument);
}

fn again(script: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["notify::tests::acts", "--exact", "--nocapture"])
        .stdout(std::process::Stdio::null())
        .env(SCRIPT, script);
    command
}

/// Not a test: the scripts of the watched programs. Does nothing when it is run among the tests.
#[test]
fn acts() {
    let Ok(script) = env::var(SCRIPT) else { return };
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    match script.as_str() {
        "plain" => {
            call(&null, b'F', 0x2b, &mut alloc(0, 0, 0x41, None));
            call(&null, b'F', 0x2a, &mut [0_u64; 4]);
            group(&null, 0x10, 1);
            channel(&null, 0x10, 0x11);
            // NV_CHANNEL_ALLOC_PARAMS: ring at 16, memory of the USERD at 32, offset in that memory
            // at 64.
            let mut params = [0; 32];
            (params[4], params[8], params[16], params[17]) = (1024, 0x30, 0x2000, 1);
            call(
                &null,
                b'F',
                0x2b,
                &mut alloc(0x10, 0x12, 0xc86f, Some(&params)),
            );
            call(&null, b'F', 0x29, &mut [CLIENT, 0x10, 0x11, 0]);
        }
        "unusual" => {
            // The driver reads the number alone, and takes calls wrapped in another.
            call(&null, b'f', 0x2b, &mut alloc(0x10, 0x12, 0xc86f, None));
            let inner = alloc(0x10, 0x13, 0xc86f, None);
            let mut outer = Xfer {
                number: 0x2b,
                size: 32,
                argument: std::ptr::from_ref(&inner) as u64,
            };
            call(&null, b'F', 211, &mut outer);
        }
        "bad addresses" => {
            for address in [0, 8, u64::MAX - 2] {
                let mut outer = Xfer {
                    number: 0x2b,
                    size: 32,
                    argument: address,
                };
                call(&null, b'F', 211, &mut outer);
                let mut argument = alloc(DEVICE, 0x20, 0xa06c, None);
                argument.params = address;
                call(&null, b'F', 0x2b, &mut argument);
            }
        }
        "polices" => {
            let passed = Answer::Errno(25); // ENOTTY: it came to the file
            let refused = Answer::Status(0x1b);
            // A time slice as the library sets it, and a longer one.
            assert_eq!(control(&null, 0xa06c_0103, &[2048, 0]), passed);
            assert_eq!(control(&null, 0xa06c_0103, &[100_000, 0]), refused);
            // Resuming its own channels, and suspending other programs' channels.
            assert_eq!(control(&null, 0x2080_110b, &[0; 134]), refused);
            assert_eq!(control(&null, 0x2080_110b, &[1; 134]), refused);
            // A control without a rule.
            assert_eq!(control(&null, 0x2080_1218, &[1, 2, 3, 4]), passed);
            // Without parameters, or with an invalid address.
            assert_eq!(control(&null, 0xa06c_0101, &[]), refused);
            let mut nowhere = control_call(0xa06c_0105, &[1, 0]);
            nowhere.params = 8;
            assert_eq!(attempt(&null, b'F', 0x2a, &mut nowhere), None);
            // Wrapped in another call, with another type.
            let inner = control_call(0xa06c_0107, &[2]);
            let mut outer = Xfer {
                number: 0x2a,
                size: 32,
                argument: std::ptr::from_ref(&inner) as u64,
            };
            assert_eq!(attempt(&null, b'f', 211, &mut outer), None);
            // The supervisor wrote into it from outside.
            assert_eq!(std::hint::black_box(&inner).status, 0x1b);
            // An invalid address of the argument goes on to the driver, which cannot read it
            // either.
            outer.argument = 8;
            assert_eq!(attempt(&null, b'F', 211, &mut outer), Some(25));
        }
        "threads" => thread::scope(|scope| {
            for thread in 0..4_u32 {
                let null = &null;
                scope.spawn(move || {
                    for index in 0..50 {
                        channel(null, 0x10, 0x100 * (1 + thread) + index);
                    }
                });
            }
        }),
        "family" => {
            group(&null, 0x10, 1);
            assert!(again("child").status().unwrap().success());
        }
        "child" => {
            channel(&null, 0x10, std::process::id());
            assert!(again("grandchild").status().unwrap().success());
        }
        "grandchild" => channel(&null, 0x10, std::process::id()),
        "dies" => {
            group(&null, 0x10, 1);
            thread::spawn(move || {
                for handle in 0x100.. {
                    channel(&null, 0x10, handle);
                }
            });
            thread::sleep(Duration::from_millis(20));
            std::process::abort();
        }
        "unnamed" => {
            let mut argument = alloc(0x10, 0, 0xc86f, None);
            call(&null, b'F', 0x2b, &mut argument);
            argument.new.store(0xcaf0_0001, Ordering::Release);
            // Longer than the supervisor needs, which polls each millisecond.
            thread::sleep(Duration::from_millis(300));
            assert_eq!(argument.new.load(Ordering::Acquire), 0xcaf0_0001);
        }
        other => panic!("{other}"),
    }
}

/// Runs a command under the filter until no process of it is left.
fn watch(command: Command) -> (Vec<Seen>, Child, ExitStatus) {
    let (seen, child, status, _) = watch_and_count(command);
    (seen, child, status)
}

/// The same, with the counts.
fn watch_and_count(mut command: Command) -> (Vec<Seen>, Child, ExitStatus, Counted) {
    let learning = Learning::lay_on(&mut command).unwrap();
    let mut child = command.spawn().unwrap();
    let mut listener = learning.listener().unwrap().unwrap();
    let (mut seen, begin) = (Vec::new(), Instant::now());
    let mut status = None;
    loop {
        status = status.or_else(|| child.try_wait().unwrap());
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        poll(&mut fds, Some(&tick)).unwrap();
        let events = fds[0].revents();
        if events.contains(PollFlags::IN) {
            listener.next(&mut seen).unwrap();
        } else if events.contains(PollFlags::HUP) {
            break;
        }
        listener.settle(&mut seen);
        // TIMEOUT: the programs take less than a second.
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    let status = status.unwrap_or_else(|| child.wait().unwrap());
    (seen, child, status, listener.counted())
}

fn run(script: &str) -> Option<(Vec<Seen>, Child, ExitStatus)> {
    if !notify::available() {
        eprintln!("SKIPPED: this kernel has no seccomp user notification");
        return None;
    }
    Some(watch(again(script)))
}

fn made(parent: u32, handle: u32, class: u32, engine: u32) -> ObjectChange {
    ObjectChange::Made(ProgramObject {
        client: CLIENT,
        handle,
        class,
        parent,
        engine,
        userd: None,
    })
}

#[test]
fn groups_channels_and_their_end_are_seen() {
    let Some((seen, child, status)) = run("plain") else {
        return;
    };
    assert!(status.success());
    let handle = 0x11;
    let expected = [
        made(DEVICE, 0x10, 0xa06c, 1),
        made(0x10, 0x11, 0xc86f, 0),
        ObjectChange::Made(ProgramObject {
            client: CLIENT,
            handle: 0x12,
            class: 0xc86f,
            parent: 0x10,
            engine: 0,
            userd: Some(Userd {
                memory: 0x30,
                offset: 0x1_0000_2000,
                entries: 1024,
            }),
        }),
        ObjectChange::Freed {
            client: CLIENT,
            handle,
        },
    ];
    let pid = child.id();
    assert_eq!(seen, expected.map(|change| Seen { pid, change }));
}

#[test]
fn calls_in_unusual_clothes_are_seen() {
    let Some((seen, _, status)) = run("unusual") else {
        return;
    };
    assert!(status.success());
    let changes: Vec<_> = seen.iter().map(|seen| seen.change).collect();
    let channel = |handle| made(0x10, handle, 0xc86f, 0);
    assert_eq!(changes, [channel(0x12), channel(0x13)]);
}

#[test]
fn addresses_that_are_none_do_no_harm() {
    let Some((seen, _, status)) = run("bad addresses") else {
        return;
    };
    assert!(status.success());
    assert_eq!(seen.len(), 3, "the groups, without their engine");
    assert!(
        seen.iter()
            .all(|seen| seen.change == made(DEVICE, 0x20, 0xa06c, 0))
    );
}

#[test]
fn what_a_tenant_may_not_ask_for_is_refused_as_the_driver_does() {
    if !notify::available() {
        eprintln!("SKIPPED: this kernel has no seccomp user notification");
        return;
    }
    let (seen, _, status, counted) = watch_and_count(again("polices"));
    assert!(status.success());
    assert_eq!(seen, []);
    // Eight controls, and the call with an invalid address of its argument.
    let expected = Counted {
        calls: 9,
        controls: 8,
        refused: 6,
        last_refused: Some(0xa06c_0107),
    };
    assert_eq!(counted, expected);
}

#[test]
fn threads_are_their_process() {
    let Some((seen, child, status)) = run("threads") else {
        return;
    };
    assert!(status.success());
    let handles: BTreeSet<u32> = seen
        .iter()
        .map(|seen| match seen.change {
            ObjectChange::Made(object) => object.handle,
            ObjectChange::Freed { .. } => 0,
        })
        .collect();
    assert_eq!((seen.len(), handles.len()), (200, 200));
    assert!(seen.iter().all(|seen| seen.pid == child.id()));
}

#[test]
fn children_and_their_children_are_seen_as_themselves() {
    let Some((seen, child, status)) = run("family") else {
        return;
    };
    assert!(status.success());
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].pid, child.id());
    for seen in &seen[1..] {
        assert_ne!(seen.pid, child.id());
        // Each process used its own number as the handle.
        assert_eq!(seen.change, made(0x10, seen.pid, 0xc86f, 0));
    }
    assert_ne!(seen[1].pid, seen[2].pid);
}

#[test]
fn a_program_that_dies_in_the_middle_leaves_the_listener_well() {
    let Some((seen, _, status)) = run("dies") else {
        return;
    };
    assert!(!status.success());
    assert_eq!(seen[0].change, made(DEVICE, 0x10, 0xa06c, 1));
}

#[test]
fn a_handle_that_the_driver_chooses_is_found() {
    let Some((seen, child, status)) = run("unnamed") else {
        return;
    };
    assert!(status.success());
    let change = made(0x10, 0xcaf0_0001, 0xc86f, 0);
    let pid = child.id();
    assert_eq!(seen, [Seen { pid, change }]);
}

#[test]
fn a_static_program_is_seen() {
    const SOURCE: &str = r#"
        #include <fcntl.h>
        #include <sys/ioctl.h>
        int main(void) {
            unsigned alloc[8] = {0xc1d00001, 0x10, 0x77, 0xc86f};
            return ioctl(open("/dev/null", O_RDWR), 0xc020462bul, alloc) == -1 ? 0 : 1;
        }"#;
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    fs::write(&source, SOURCE).unwrap();
    let built = Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .output();
    if !built.is_ok_and(|built| built.status.success()) || !notify::available() {
        eprintln!("SKIPPED: no C compiler that links statically, or no user notification");
        return;
    }
    let (seen, child, status) = watch(Command::new(program));
    assert!(status.success());
    let change = made(0x10, 0x77, 0xc86f, 0);
    let pid = child.id();
    assert_eq!(seen, [Seen { pid, change }]);
}

#[test]
fn a_command_that_is_not_there_has_no_listener() {
    if !notify::available() {
        eprintln!("SKIPPED: this kernel has no seccomp user notification");
        return;
    }
    let mut command = Command::new("/nonexistent/program");
    let learning = Learning::lay_on(&mut command).unwrap();
    assert!(command.spawn().is_err());
    // The filter was installed in a process that is gone.
    if let Some(listener) = learning.listener().unwrap() {
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).unwrap();
        assert!(fds[0].revents().contains(PollFlags::HUP));
    }
}
