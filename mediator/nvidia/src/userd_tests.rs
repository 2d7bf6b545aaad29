//! A lender without a driver, and files of a real process.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;

const A: TenantId = TenantId(1);
const RING: u32 = 1024;

/// Says at each offset what it is, and counts what is lent.
#[derive(Default)]
struct Fake {
    lent: Rc<Cell<usize>>,
    lengths: RefCell<Vec<u64>>,
    refuses: Cell<bool>,
}

struct Lent {
    lent: Rc<Cell<usize>>,
    memory: u32,
    length: u64,
}

impl Memory for Lent {
    fn word(&self, offset: u64) -> Option<u64> {
        let word = u64::from(self.memory) << 32 | offset;
        (offset + 8 <= self.length).then_some(word)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lent.set(self.lent.get() - 1);
    }
}

impl Lender for Fake {
    type Memory = Lent;

    fn lend(&self, pid: u32, _: u32, memory: u32, length: u64) -> Result<Lent, UserdError> {
        if self.refuses.get() {
            return Err(UserdError::NoFile(pid));
        }
        self.lent.set(self.lent.get() + 1);
        self.lengths.borrow_mut().push(length);
        Ok(Lent {
            lent: self.lent.clone(),
            memory,
            length,
        })
    }
}

fn place(pid: u32, memory: u32, offset: u64) -> Place {
    let entries = RING;
    Place {
        pid,
        client: 7,
        userd: Userd {
            memory,
            offset,
            entries,
        },
    }
}

#[test]
fn memory_is_mapped_once_and_as_far_as_channels_reach() {
    let fake = Fake::default();
    let places = [
        place(1, 5, 0x2000),
        place(1, 5, 0x5000),
        place(2, 6, 0x2000),
    ];
    let opened = open(&fake, &places).unwrap();
    assert_eq!(*fake.lengths.borrow(), [0x6000, 0x3000]);
    let read: Vec<_> = (0..opened.count())
        .map(|index| opened.read(index))
        .collect();
    let said = |put, get| (Entries { get, put }, RING);
    assert_eq!(read, [said(5, 0x2088), said(5, 0x5088), said(6, 0x2088)]);
    assert_eq!(opened.read(3), (Entries::default(), 0));
    drop(opened);
    assert_eq!(fake.lent.get(), 0);
}

#[test]
fn what_a_tenant_alleges_is_bounded() {
    let fake = Fake::default();
    let many: Vec<Place> = (0..65).map(|at| place(1, at, 0)).collect();
    let refused = open(&fake, &many).map(drop).unwrap_err();
    assert!(matches!(refused, UserdError::TooMany(65)), "{refused}");
    for offset in [2 << 20, (2 << 20) - 0x80, 0x2004, u64::MAX, u64::MAX - 0x8f] {
        let refused = open(&fake, &[place(1, 5, offset)]).map(drop).unwrap_err();
        assert!(matches!(refused, UserdError::TooFar(_)), "{refused}");
    }
    assert_eq!(fake.lent.get(), 0);
}

#[test]
fn channels_are_opened_when_no_more_are_made_and_given_back_when_they_are_others() {
    let fake = Fake::default();
    let mut userds = Userds::default();
    let now = Instant::now();
    let (one, two) = ([place(1, 5, 0)], [place(1, 5, 0), place(1, 5, 0x3000)]);
    assert!(!userds.is_due(A, &one, now), "more may come");
    assert!(!userds.is_due(A, &two, now));
    assert!(userds.is_due(A, &two, now));
    userds.put(A, open(&fake, &two), now);
    assert!(!userds.is_due(A, &two, now));
    assert_eq!((userds.count(), fake.lent.get()), (2, 1));
    let generation = userds.of(A).unwrap().generation();
    assert!(!userds.is_due(A, &one, now));
    assert!(userds.of(A).is_none() && fake.lent.get() == 0);
    assert!(userds.is_due(A, &one, now));
    userds.put(A, open(&fake, &one), now);
    assert_ne!(userds.of(A).unwrap().generation(), generation);
    userds.keep(|_| false);
    assert!(userds.of(A).is_none() && fake.lent.get() == 0);
    userds.put(A, open(&fake, &one), now);
    assert!(fake.lent.get() == 0, "it has gone meanwhile");
}

#[test]
fn what_is_refused_is_tried_again_now_and_then() {
    let fake = Fake::default();
    fake.refuses.set(true);
    let mut userds = Userds::default();
    let begin = Instant::now();
    let places = [place(1, 5, 0)];
    let mut tries = 0;
    for ms in (0..20_000).step_by(100) {
        let now = begin + Duration::from_millis(ms);
        if userds.is_due(A, &places, now) {
            tries += 1;
            userds.put(A, open(&fake, &places), now);
        }
    }
    assert_eq!(tries, 4);
    assert!(
        !userds.is_due(A, &[], begin) && !userds.is_due(A, &[], begin),
        "it has none"
    );
}

#[test]
fn files_of_another_process_are_found_by_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    fs::write(&path, "said").unwrap();
    let (file, other) = (File::open(&path).unwrap(), File::open("/dev/null").unwrap());
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .stdin(file)
        .stdout(other)
        .spawn()
        .unwrap();
    let found = open_files(child.id(), &path);
    child.kill().unwrap();
    child.wait().unwrap();
    let texts: Vec<String> = found
        .unwrap()
        .into_iter()
        .map(|file| io::read_to_string(file).unwrap())
        .collect();
    assert_eq!(texts, ["said"]);
    let gone = open_files(child.id(), &path).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(3), "{gone}");
}
