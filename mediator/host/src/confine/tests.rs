//! What threads with fewer rights can still do, on this host's kernel.

use super::*;
use std::thread;

const ALL: [Role; 6] = [
    Role::Process,
    Role::Accounting,
    Role::Control,
    Role::Engine,
    Role::Writer,
    Role::Api,
];

/// Runs `act` in a thread of this role.
fn within<R: Send + 'static>(role: Role, act: impl FnOnce() -> R + Send + 'static) -> R {
    within_on(role, true, act)
}

fn within_on<R: Send + 'static>(
    role: Role,
    software: bool,
    act: impl FnOnce() -> R + Send + 'static,
) -> R {
    let thread = thread::spawn(move || {
        let filter = filter(role, Seccomp::Enforce, software).unwrap();
        apply_filter(&filter).unwrap();
        act()
    });
    thread.join().unwrap()
}

#[test]
fn every_role_works_and_none_can_run_programs() {
    for role in ALL {
        let (sum, ran) = within(role, || {
            let sum: u64 = (0..100_000).collect::<Vec<u64>>().iter().sum();
            let ran = std::process::Command::new("/bin/true").status();
            (sum, ran.map_err(|error| error.kind()))
        });
        assert_eq!(sum, 4_999_950_000);
        assert_eq!(
            ran.unwrap_err(),
            io::ErrorKind::PermissionDenied,
            "{role:?}"
        );
    }
}

#[test]
fn guests_kernels_run_where_no_file_and_no_socket_can_be_had() {
    let (file, socket) = within(Role::Engine, || {
        let file = std::fs::File::open("/etc/hostname").map_err(|error| error.kind());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|error| error.kind());
        (file.map(drop), socket.map(drop))
    });
    assert_eq!(file, Err(io::ErrorKind::PermissionDenied));
    assert_eq!(socket, Err(io::ErrorKind::PermissionDenied));
    let socket = within(Role::Api, || {
        std::net::UdpSocket::bind("127.0.0.1:0")
            .map(drop)
            .map_err(|error| error.kind())
    });
    assert_eq!(socket, Err(io::ErrorKind::PermissionDenied));
}

/// A software GPU that fell silent is taken back by the accounting thread.
#[test]
fn accounting_starts_engines_anew() {
    let began = within(Role::Accounting, || {
        let engine = thread::Builder::new().name("engine".to_owned());
        let engine = engine.spawn(|| {
            let filter = filter(Role::Engine, Seccomp::Enforce, true).unwrap();
            apply_filter(&filter).unwrap();
        });
        engine.map(|engine| engine.join().unwrap())
    });
    assert!(began.is_ok(), "{began:?}");
    let began = within(Role::Engine, || {
        thread::Builder::new().spawn(|| ()).map(drop)
    });
    assert_eq!(began.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn with_hardware_accounting_may_use_ioctl_and_roles_execute_no_programs() {
    for role in ALL.into_iter().filter(|role| role.is_confined(false)) {
        let ran = within_on(role, false, || {
            let ran = std::process::Command::new("/bin/true").status();
            ran.map_err(|error| error.kind())
        });
        let denied = io::ErrorKind::PermissionDenied;
        assert_eq!(ran.unwrap_err(), denied, "{role:?}");
    }
    let opened = |software| {
        within_on(Role::Accounting, software, || {
            // Not a terminal: refused by the file, if the call is permitted.
            let file = std::fs::File::from(rustix::event::eventfd(
                0,
                rustix::event::EventfdFlags::empty(),
            )?);
            rustix::termios::tcgetattr(&file).map(drop)
        })
    };
    // It reads the state of tenants' channels, for which it takes a file of theirs.
    let files = |software| {
        within_on(Role::Accounting, software, || {
            use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
            let own = pidfd_open(getpid(), PidfdFlags::empty())?;
            pidfd_getfd(own, 2, PidfdGetfdFlags::empty()).map(drop)
        })
    };
    assert_eq!(files(false), Ok(()));
    assert_eq!(files(true), Err(rustix::io::Errno::PERM));
    assert_eq!(opened(false), Err(rustix::io::Errno::NOTTY));
    assert_eq!(opened(true), Err(rustix::io::Errno::PERM));
    assert!(!Role::Control.is_confined(false), "it starts workers");
}

#[test]
fn the_api_gives_up_by_itself_what_the_process_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    let plan = Plan {
        seccomp: Seccomp::Enforce,
        software: false,
        api_files: Some(Files {
            writable: vec![mine.clone()],
            ..Files::default()
        }),
        keep_capabilities: false,
    };
    let other = folder.path().join("other");
    let (kept, wrote) = thread::spawn(move || {
        give_up_alone(&plan);
        let write = |path: &Path| std::fs::write(path, "x").is_ok();
        let wrote = (write(&mine.join("file")), write(&other));
        (capabilities(None).unwrap().permitted, wrote)
    })
    .join()
    .unwrap();
    assert!(!kept.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID));
    assert!(wrote.0);
    if probe_landlock().unwrap() {
        assert!(!wrote.1, "a file outside of its folders");
    } else {
        println!("SKIPPED: this kernel has no Landlock");
    }
}

#[test]
fn memory_does_not_become_code() {
    let denied = within(Role::Engine, || {
        let memory = vm_memory::MmapRegion::<()>::build(
            None,
            4096,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        memory.is_err()
    });
    assert!(denied);
}

#[test]
fn files_are_out_of_reach_where_the_kernel_has_landlock() {
    let folder = tempfile::tempdir().unwrap();
    let (mine, other) = (folder.path().join("mine"), folder.path().join("other"));
    std::fs::create_dir(&mine).unwrap();
    std::fs::create_dir(&other).unwrap();
    let wrote = thread::spawn(move || {
        let has = restrict_files(&Files {
            writable: vec![mine.clone()],
            ..Files::default()
        })
        .unwrap();
        let write = |folder: &Path| std::fs::write(folder.join("file"), "x").is_ok();
        (has, write(&mine), write(&other))
    });
    match wrote.join().unwrap() {
        (true, mine, other) => assert_eq!((mine, other), (true, false)),
        (false, ..) => println!("SKIPPED: this kernel has no Landlock"),
    }
}

#[test]
fn capabilities_go_for_good() {
    let left = thread::spawn(|| {
        give_up_capabilities().unwrap();
        rustix::thread::capabilities(None).unwrap()
    });
    let left = left.join().unwrap();
    let none = CapabilitySet::empty();
    assert_eq!((left.effective, left.permitted), (none, none));
}

#[test]
fn thread_of_a_filtered_process_takes_the_list_of_its_own_role() {
    let file = within(Role::Process, || {
        let own = filter(Role::Engine, Seccomp::Enforce, true).unwrap();
        apply_filter(&own).unwrap();
        let file = std::fs::File::open("/etc/hostname");
        file.map(drop).map_err(|error| error.kind())
    });
    assert_eq!(file, Err(io::ErrorKind::PermissionDenied));
}
