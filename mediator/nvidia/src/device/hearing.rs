//! Listening to tenants' hosts while nothing else is to be done: who rests wakes, or rings a doorbell, who works goes to sleep. What that is worth is [`crate::hosts`]' matter.
//!
//! Programs are watched by the kernel from outside: they run as they do without, but for the one write that is heard, which takes 4 us longer (measured on an H200's host).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use turnstile_accounting::{Nanos, TenantId};

use super::looking::Looker;
use super::{Shared, lock};
use crate::doorbells::doorbells;
use crate::hosts::Listens;
use crate::look;
use crate::sys::{ThreadEvent, Whereabouts};

/// Processes of a tenant, and threads of each, that are listened to until one has rung; and lines of what a process has mapped that are read for its doorbells.
const PROCESSES_MAX: usize = 4;
const THREADS_MAX: usize = 16;
const LINES_MAX: usize = 65_536;

/// Whose threads were only kept from their processor so often within so long is not listened to for the rest of that: threads that yield to each other would have who accounts wake each
/// time. (A scheduler's slices are milliseconds.)
const KEPT_MAX: u32 = 8;
const KEPT_WITHIN: Duration = Duration::from_millis(10);

/// Why a tenant's host is not heard.
#[derive(Debug, thiserror::Error)]
pub(super) enum HearingError {
    /// What the kernel says of its processes cannot be had.
    #[error("The threads of process {pid} cannot be had")]
    Process {
        /// Which.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not watch them.
    #[error("The kernel does not watch its threads (needs CAP_PERFMON, and CONFIG_PERF_EVENTS)")]
    Watch(#[source] io::Error),
    /// Nobody is known who rings.
    #[error("It has no doorbells, or nobody has rung one yet")]
    Nobody,
}

/// A thread that may ring a doorbell.
#[derive(Debug)]
struct Ringer {
    thread: u32,
    event: ThreadEvent,
    rang: bool,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// A thread wakes, of those that ring.
    Wake,
    /// A doorbell is rung.
    Ring,
    /// A thread that rings goes to sleep.
    Sleep,
}

/// One tenant's.
#[derive(Debug, Default)]
struct Ear {
    /// The processes that were looked through.
    pids: Vec<u32>,
    ringers: Vec<Ringer>,
    /// Threads that rang, coming to their processors and leaving them: they are told of from the first time on until [`Self::rest`], also while nobody waits for it. (That is a microsecond or
    /// two for each; to switch something on, the kernel interrupts the processor where the thread was last, which takes 10 us where that works, and 90 where it sleeps. Measured on hosts of
    /// an H100 and an H200.)
    threads: Vec<(u32, ThreadEvent)>,
    awaits: Option<Awaited>,
    kept: Kept,
}

/// How often threads that are waited for to sleep were only kept from their processor, since then.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    since: Option<Instant>,
    count: u32,
}

impl Kept {
    fn again(&mut self, now: Instant) {
        if self.left(now).is_zero() {
            self.since = Some(now);
            self.count = 0;
        }
        self.count += 1;
    }

    /// How long that counts still.
    fn left(&self, now: Instant) -> Duration {
        let ago = self.since.map(|since| now.saturating_duration_since(since));
        ago.map_or(Duration::ZERO, |ago| KEPT_WITHIN.saturating_sub(ago))
    }

    /// For how long it is not to be listened.
    fn mute(&self, now: Instant) -> Option<Duration> {
        let left = self.left(now);
        (self.count >= KEPT_MAX && !left.is_zero()).then_some(left)
    }
}

impl Ear {
    /// All threads of its processes, at all their doorbells.
    fn find(&mut self, pids: Vec<u32>) -> Result<(), HearingError> {
        *self = Self::default();
        for pid in pids.iter().copied().take(PROCESSES_MAX) {
            let of_process = |source| HearingError::Process { pid, source };
            let doorbells = doorbells_of(pid).map_err(of_process)?;
            for thread in threads_of(pid).map_err(of_process)? {
                for address in &doorbells {
                    let event = match ThreadEvent::writes(thread, *address) {
                        Ok(event) => event,
                        // It has ended meanwhile.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                        Err(error) => return Err(HearingError::Watch(error)),
                    };
                    self.ringers.push(Ringer {
                        thread,
                        event,
                        rang: false,
                    });
                }
            }
        }
        self.pids = pids;
        Ok(())
    }

    /// Those that are waited for.
    fn events(&self) -> Vec<&ThreadEvent> {
        match self.awaits {
            Some(Awaited::Ring) => self.ringers.iter().map(|ringer| &ringer.event).collect(),
            Some(_) => self.threads.iter().map(|(_, event)| event).collect(),
            None => Vec::new(),
        }
    }

    /// Those that are listened to now.
    fn heard_at(&self, now: Instant) -> Vec<&ThreadEvent> {
        if self.kept.mute(now).is_some() {
            return Vec::new();
        }
        self.events()
    }

    /// What was told so far is not told again.
    fn forget(&self) {
        let events = self.events();
        let fds = events
            .iter()
            .map(|event| PollFd::new(*event, PollFlags::IN));
        told_within(fds.collect(), Timespec::default());
    }

    /// Nothing is waited for any more. A doorbell is not to take longer for it, from the second time on.
    fn stop(&mut self) -> Result<(), HearingError> {
        let mut done = Ok(());
        if self.awaits == Some(Awaited::Ring) {
            done = set_all(self.ringers.iter().map(|ringer| &ringer.event), false);
            self.forget();
        }
        self.awaits = None;
        done
    }

    /// Nobody is told any more where its threads are.
    fn rest(&mut self) {
        if matches!(self.awaits, None | Some(Awaited::Ring)) {
            // Closed, they tell nothing.
            self.threads.clear();
        }
    }

    /// All threads that rang are told of, and sleep.
    fn sleeps(&self) -> bool {
        let sleeps = |event: &ThreadEvent| event.whereabouts() == Some(Whereabouts::Sleeps);
        let of = |thread: u32| self.threads.iter().find(|(known, _)| *known == thread);
        let mut ringers = self.ringers.iter();
        !self.ringers.is_empty()
            && ringers.all(|ringer| {
                ringer.rang && of(ringer.thread).is_some_and(|(_, event)| sleeps(event))
            })
    }

    /// Waits for that from now on: for a thread that wakes, if those that ring sleep, and else for the doorbell.
    fn listen(
        &mut self,
        to: Listens,
        (pids, known): (Vec<u32>, bool),
        by_wakes: bool,
    ) -> Result<(), HearingError> {
        self.stop()?;
        match to {
            Listens::Begin => {
                if !known || self.ringers.is_empty() || self.pids != pids {
                    self.find(pids)?;
                }
                self.awaits = Some(Awaited::Wake);
                self.forget();
                // One that wakes now is told.
                if !(by_wakes && self.sleeps()) {
                    self.awaits = Some(Awaited::Ring);
                    set_all(self.ringers.iter().map(|ringer| &ringer.event), true)?;
                }
            }
            Listens::Stop => {
                for ringer in self.ringers.iter().filter(|ringer| ringer.rang) {
                    let mut known = self.threads.iter().map(|(thread, _)| *thread);
                    if known.all(|thread| thread != ringer.thread) {
                        let event = ThreadEvent::switches(ringer.thread);
                        let event = event.map_err(HearingError::Watch)?;
                        self.threads.push((ringer.thread, event));
                    }
                }
                self.awaits = Some(Awaited::Sleep);
                self.forget();
            }
        }
        if self.events().is_empty() {
            self.awaits = None;
            return Err(HearingError::Nobody);
        }
        Ok(())
    }

    /// Something was told of these of its events: what was heard, if that is what was waited for, and nothing is any more. Who rang once is the one who rings. A thread that has ended rings no
    /// more, and would be told of for ever: who else does is learnt anew.
    fn told(&mut self, told: &[Told]) -> Option<Listens> {
        let awaited = self.awaits?;
        let ended = told.contains(&Told::Ended);
        match awaited {
            Awaited::Ring => {
                for (ringer, told) in self.ringers.iter_mut().zip(told) {
                    ringer.rang |= *told == Told::Something;
                }
            }
            Awaited::Sleep => {
                let mut of = self.threads.iter().zip(told);
                // One that was only interrupted, or is back already, has not stopped.
                let runs = |((_, event), told): (&(u32, ThreadEvent), &Told)| {
                    *told == Told::Nothing || event.whereabouts() == Some(Whereabouts::Runs)
                };
                if !ended && of.all(runs) {
                    return None;
                }
            }
            Awaited::Wake => {}
        }
        if let Err(error) = self.stop() {
            log::debug!("{error}");
        }
        if ended {
            self.ringers.clear();
            self.threads.clear();
        }
        self.ringers.retain(|ringer| ringer.rang);
        Some(match awaited {
            Awaited::Wake | Awaited::Ring => Listens::Begin,
            Awaited::Sleep => Listens::Stop,
        })
    }
}

fn set_all<'a>(
    events: impl IntoIterator<Item = &'a ThreadEvent>,
    on: bool,
) -> Result<(), HearingError> {
    let set = |event: &ThreadEvent| event.set(on);
    let done = events.into_iter().try_for_each(set);
    done.map_err(HearingError::Watch)
}

/// What an event told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Something,
    /// Its thread has ended.
    Ended,
}

impl Told {
    fn of(fd: &PollFd<'_>) -> Self {
        let said = fd.revents();
        // SOURCE: kernel/events/core.c: perf_poll says EPOLLHUP of an event whose task has exited, and nothing else from then on.
        if said.contains(PollFlags::HUP) {
            Self::Ended
        } else if said.is_empty() {
            Self::Nothing
        } else {
            Self::Something
        }
    }
}

/// What each of these told, as soon as one does.
fn told_within(mut fds: Vec<PollFd<'_>>, within: Timespec) -> Vec<Told> {
    // A signal ends it early, as if nothing were told.
    let _ = poll(&mut fds, Some(&within));
    fds.iter().map(Told::of).collect()
}

/// Threads of a process.
fn threads_of(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).take(THREADS_MAX).collect())
}

/// Where a process rings.
fn doorbells_of(pid: u32) -> io::Result<Vec<u64>> {
    let lines = BufReader::new(File::open(format!("/proc/{pid}/maps"))?).lines();
    let lines: Vec<String> = lines.take(LINES_MAX).collect::<io::Result<_>>()?;
    Ok(doorbells(lines.iter().map(String::as_str)))
}

/// Those of all tenants. One thread has them, and sleeps with them.
#[derive(Debug, Default)]
pub(super) struct Ears {
    tenants: BTreeMap<TenantId, Ear>,
}

impl Ears {
    /// Sleeps for so long, until somebody is heard, or `wake` is written. Returns what was heard of whom: they are not listened to any more.
    fn wait(&mut self, length: Nanos, wake: &OwnedFd) -> Vec<(TenantId, Listens)> {
        let end = Instant::now() + Duration::from_nanos(length.0);
        loop {
            let now = Instant::now();
            let left = end.saturating_duration_since(now);
            let mute = self.tenants.values().filter_map(|ear| ear.kept.mute(now));
            // Then somebody is listened to again: what his threads did meanwhile is told at once.
            let first = mute.min().filter(|first| *first < left);
            let told = self.wait_once(first.unwrap_or(left), now, wake);
            match (told, first) {
                (None, Some(_)) => {}
                (told, _) => return told.unwrap_or_default(),
            }
        }
    }

    /// None if nothing was told.
    fn wait_once(
        &mut self,
        length: Duration,
        now: Instant,
        wake: &OwnedFd,
    ) -> Option<Vec<(TenantId, Listens)>> {
        let within = Timespec {
            // CAST: 584 years of nanoseconds are 18 billion seconds.
            tv_sec: length.as_secs() as i64,
            tv_nsec: length.subsec_nanos().into(),
        };
        let events = self.tenants.values().flat_map(|ear| ear.heard_at(now));
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(events.map(|event| PollFd::new(event, PollFlags::IN)));
        let told = told_within(fds, within);
        if told.first() == Some(&Told::Something) {
            // It was written, and is to be again.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut rest = told.get(1..).unwrap_or_default();
        let mut heard = Vec::new();
        for (tenant, ear) in &mut self.tenants {
            let (own, others) = rest.split_at(ear.heard_at(now).len().min(rest.len()));
            rest = others;
            if own.iter().any(|told| *told != Told::Nothing) {
                match ear.told(own) {
                    Some(what) => heard.push((*tenant, what)),
                    None => ear.kept.again(Instant::now()),
                }
            }
        }
        let any = told.iter().any(|told| *told != Told::Nothing);
        any.then_some(heard)
    }
}

impl Shared {
    /// Sleeps for so long, or until somebody is heard, or the thread is woken; how soon that is to be decided about, if it is.
    pub(super) fn nap(&self, length: Nanos) -> Option<Nanos> {
        let mut ears = lock(&self.ears);
        let wanted = {
            let mut watched = lock(&self.watched);
            let watch = &mut watched.watch;
            let all: Vec<TenantId> = watch.demand.tenants().collect();
            ears.tenants.retain(|tenant, _| all.contains(tenant));
            let now = self.now();
            for (tenant, ear) in &mut ears.tenants {
                if !watch.may_sleep(*tenant, now) {
                    ear.rest();
                }
            }
            let listens = watch.listens(now, |tenant| self.is_held(tenant));
            let wanted = listens.into_iter().map(|(tenant, listens)| {
                let pids: Vec<u32> = watch.pids(tenant).collect();
                let hosts = &watch.hosts;
                let pids = (pids, hosts.is_known(tenant));
                (tenant, listens, pids, hosts.begins_when_awake(tenant))
            });
            wanted.collect::<Vec<_>>()
        };
        for (tenant, listens, pids, by_wakes) in wanted {
            let ear = ears.tenants.entry(tenant).or_default();
            if let Err(error) = ear.listen(listens, pids, by_wakes) {
                log::debug!("{tenant} is not heard: {error}");
                let now = self.now();
                lock(&self.watched).watch.hosts.is_deaf(tenant, now);
            }
        }
        let heard = ears.wait(length, &self.wake);
        if heard.is_empty() {
            return None;
        }
        // CAST: tenants of a GPU are few.
        self.heard.fetch_add(heard.len() as u64, Ordering::Relaxed);
        look::look_up(&mut Looker(self));
        let now = self.now();
        let mut watched = lock(&self.watched);
        let watch = &mut watched.watch;
        let heard = heard
            .into_iter()
            .filter_map(|(tenant, what)| watch.heard(tenant, what, now));
        heard.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::thread::{CpuSet, sched_setaffinity};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::thread;

    const LONG: Nanos = Nanos::from_ms(20_000);

    /// A thread that ends when it is let go, and what tells where it is; none if the kernel does not.
    fn ringer() -> Option<(Ears, mpsc::Sender<()>)> {
        let (end, ends) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            tell.send(
                rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned(),
            )
            .unwrap();
            let _ = ends.recv();
        });
        let thread = told.recv().unwrap();
        let event = ThreadEvent::switches(thread)
            .inspect_err(|error| println!("skipped: no events of threads here: {error}"))
            .ok()?;
        let ear = Ear {
            threads: vec![(thread, event)],
            ..Ear::default()
        };
        let tenants = BTreeMap::from([(TenantId(1), ear)]);
        Some((Ears { tenants }, end))
    }

    #[test]
    fn a_thread_that_has_ended_is_told_of_once() {
        for (awaits, what) in [
            (Awaited::Sleep, Listens::Stop),
            (Awaited::Wake, Listens::Begin),
        ] {
            let Some((mut ears, end)) = ringer() else {
                return;
            };
            let wake = eventfd(0, EventfdFlags::empty()).unwrap();
            let awaits_again = |ears: &mut Ears| {
                let ear = ears.tenants.get_mut(&TenantId(1)).unwrap();
                ear.awaits = Some(awaits);
                ear.threads.len()
            };
            drop(end);
            let begin = Instant::now();
            // It may be told before that that it wakes.
            while awaits_again(&mut ears) > 0 {
                for heard in ears.wait(LONG, &wake) {
                    assert_eq!(heard, (TenantId(1), what));
                }
                // TIMEOUT: it has nothing else to do.
                assert!(begin.elapsed().as_secs() < 20, "it is not told");
            }
            let begin = Instant::now();
            assert!(ears.wait(Nanos::from_ms(30), &wake).is_empty());
            assert!(
                begin.elapsed().as_millis() >= 30,
                "woken for one who is gone"
            );
        }
    }

    #[test]
    fn who_is_kept_from_its_processor_often_is_not_listened_to_for_a_while() {
        let begin = Instant::now();
        let at = |us| begin + Duration::from_micros(us);
        let mut kept = Kept::default();
        assert_eq!(kept.mute(begin), None);
        // Slices of a scheduler.
        for slice in 0..20 {
            kept.again(at(slice * 3_000));
            assert_eq!(kept.mute(at(slice * 3_000)), None);
        }
        for round in 10..13 {
            for time in 0..u64::from(KEPT_MAX) {
                assert_eq!(kept.mute(at(round * 10_000 + time * 10)), None);
                kept.again(at(round * 10_000 + time * 10));
            }
            let left = Duration::from_micros(9_900);
            assert_eq!(kept.mute(at(round * 10_000 + 100)), Some(left));
        }
        assert_eq!(kept.mute(at(130_000)), None);
    }

    #[test]
    fn threads_that_yield_to_each_other_wake_nobody_each_time() {
        let ended = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        for _ in 0..2 {
            let (ended, tell) = (ended.clone(), tell.clone());
            thread::spawn(move || {
                let mut one = CpuSet::new();
                one.set(0);
                sched_setaffinity(None, &one).unwrap();
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send(thread.cast_unsigned()).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            });
        }
        let mut threads = Vec::new();
        for _ in 0..2 {
            let thread = told.recv().unwrap();
            match ThreadEvent::switches(thread) {
                Ok(event) => threads.push((thread, event)),
                Err(error) => {
                    ended.store(true, Ordering::Relaxed);
                    return println!("skipped: no events of threads here: {error}");
                }
            }
        }
        let ear = Ear {
            threads,
            awaits: Some(Awaited::Sleep),
            ..Ear::default()
        };
        let mut ears = Ears {
            tenants: BTreeMap::from([(TenantId(1), ear)]),
        };
        let wake = eventfd(0, EventfdFlags::empty()).unwrap();
        let (begin, mut wakes) = (Instant::now(), 0);
        while begin.elapsed() < 20 * KEPT_WITHIN {
            ears.wait(Nanos::from_ms(50), &wake);
            wakes += 1;
        }
        ended.store(true, Ordering::Relaxed);
        assert!(wakes <= 21 * KEPT_MAX, "{wakes}");
    }
}
