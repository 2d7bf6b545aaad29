//! Programs that together own more than the card has, under a daemon that moves their memory
//! (`moving.rs` lists what is real).

use std::fs;
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use turnstile_accounting::TenantId;
use turnstile_daemon::{Homecoming, TenantSnapshot};

use super::gpu::FakeGpu;
use super::library::library;
use super::movable::build;
use super::moving::Moves;
use super::{Bench, kill, until};

const MIB: u64 = 1 << 20;

/// A bench over a card that has room for one and a half of the programs.
struct Moved {
    bench: Bench,
    program: String,
}

/// Work of a program, by its seed.
#[derive(Clone, Copy)]
struct Work {
    seed: u64,
    steps: u64,
    mib: u64,
    nap_ms: u64,
}

impl Work {
    const fn of(seed: u64) -> Self {
        Self {
            seed,
            steps: 700,
            mib: 30,
            nap_ms: 0,
        }
    }

    fn words(self) -> Vec<String> {
        let numbers = [self.seed, self.steps, self.mib, self.nap_ms];
        let numbers = numbers.into_iter().map(|number| number.to_string());
        ["linked".into(), "work".into()]
            .into_iter()
            .chain(numbers)
            .collect()
    }
}

impl Moved {
    fn new(card_mib: u64, pool_mib: u64) -> Self {
        let mut bench = Bench::new();
        let program = build(&bench);
        let moves = Moves::new(bench.folder.path(), card_mib * MIB, pool_mib * MIB);
        bench.restart_over(FakeGpu::moving(moves));
        Self { bench, program }
    }

    fn moves(&self) -> &Moves {
        self.bench.gpu.moves.as_ref().unwrap()
    }

    fn run(&self, name: &str, work: Work, options: &[&str]) -> Child {
        let engine = self.bench.path(&format!("engine-{name}"));
        fs::write(&engine, [0; 8]).unwrap();
        let library = library();
        let movable = ["--movable", "--name", name, "--preload"];
        let mut all = movable.to_vec();
        all.push(library.to_str().unwrap());
        all.extend(options);
        let words = work.words();
        let mut command = vec![self.program.as_str()];
        command.extend(words.iter().map(String::as_str));
        let mut run = self.bench.run(&all, &command);
        run.env("LD_LIBRARY_PATH", self.bench.folder.path())
            .env("FAKE_ENGINE", engine);
        run.spawn().unwrap()
    }

    /// Its output when its memory is not moved.
    fn alone(&self, work: Work) -> String {
        let output = Command::new(&self.program)
            .args(work.words())
            .env("LD_LIBRARY_PATH", self.bench.folder.path())
            .output()
            .unwrap();
        output_text(&output)
    }

    fn tenant(&self, name: &str) -> Option<TenantId> {
        let snapshot = self.bench.daemon.as_ref()?.host().snapshot();
        let mut tenants = snapshot.tenants.iter();
        Some(tenants.find(|tenant| tenant.name == name)?.tenant)
    }

    /// Bytes that were moved out of all present tenants, and that are away now.
    fn moved(&self) -> (u64, u64) {
        let snapshot = self.bench.daemon.as_ref().unwrap().host().snapshot();
        let memory = snapshot.tenants.iter().filter_map(|tenant| tenant.memory);
        memory.fold((0, 0), |sums, memory| {
            (
                sums.0 + memory.swapped_out_bytes,
                sums.1 + memory.swapped_bytes,
            )
        })
    }
}

fn output_text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A few at first; TURNSTILE_SEEDS sets how many.
fn seeds(few: u64) -> u64 {
    let wanted = std::env::var("TURNSTILE_SEEDS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(few)
}

#[test]
fn programs_take_turns_on_a_card_that_cannot_hold_them_and_no_byte_differs() {
    let moved = Moved::new(48, 128);
    for seed in 0..seeds(2) {
        let works = [0, 1, 2].map(|nth| Work {
            nap_ms: if nth == 2 { 60 } else { 0 },
            ..Work::of(3 * seed + nth)
        });
        let expected = works.map(|work| moved.alone(work));
        let names = [0, 1, 2].map(|nth| format!("p{seed}-{nth}"));
        let running: Vec<Child> = works
            .iter()
            .zip(&names)
            .map(|(work, name)| moved.run(name, *work, &[]))
            .collect();
        let mut out_bytes = 0;
        let results: Vec<String> = thread::scope(|scope| {
            let waiting: Vec<_> = running
                .into_iter()
                .map(|child| scope.spawn(|| output_text(&child.wait_with_output().unwrap())))
                .collect();
            while waiting.iter().any(|one| !one.is_finished()) {
                out_bytes = out_bytes.max(moved.moved().0);
                thread::sleep(Duration::from_millis(5));
            }
            waiting.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(results, expected, "seed {seed}");
        assert!(out_bytes > 48 * MIB, "{out_bytes} bytes went, seed {seed}");
        until("all of it is free", || {
            moved.moves().mover.pool_bytes().1 == 0
        });
    }
}

#[test]
fn program_killed_during_a_move_frees_its_memory_for_others() {
    let moved = Moved::new(48, 128);
    let works = [10, 11].map(Work::of);
    let expected = works.map(|work| moved.alone(work));
    let others = works.map(|work| moved.run(&format!("other-{}", work.seed), work, &[]));
    for round in 0..4 {
        let name = format!("victim-{round}");
        let endless = Work {
            steps: u64::MAX,
            ..Work::of(20 + round)
        };
        let mut victim = moved.run(&name, endless, &[]);
        until("its memory moves", || {
            let snapshot = moved.bench.daemon.as_ref().unwrap().host().snapshot();
            let mut tenants = snapshot.tenants.iter();
            let found = tenants.find(|tenant| tenant.name == name);
            found.is_some_and(|tenant| {
                tenant
                    .memory
                    .is_some_and(|memory| memory.swapped_out_bytes > 0)
            })
        });
        let children = fs::read_to_string(format!(
            "/proc/{}/task/{}/children",
            victim.id(),
            victim.id()
        ));
        for pid in children.unwrap().split_whitespace() {
            let Ok(words) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else {
                continue;
            };
            if words.contains("work") && !words.contains("run-keeper") {
                let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
                kill_process(pid, Signal::KILL).unwrap();
            }
        }
        assert_eq!(victim.wait().unwrap().code(), Some(128 + 9));
        until("it is no tenant", || moved.tenant(&name).is_none());
    }
    let results = others.map(|child| output_text(&child.wait_with_output().unwrap()));
    assert_eq!(results, expected);
    until("all of it is free", || {
        moved.moves().mover.pool_bytes().1 == 0
    });
}

#[test]
fn a_mover_that_is_killed_is_replaced_and_no_byte_differs() {
    let moved = Moved::new(48, 128);
    let works = [30, 31].map(|seed| Work {
        steps: 9_000,
        ..Work::of(seed)
    });
    let expected = works.map(|work| moved.alone(work));
    let running = works.map(|work| moved.run(&format!("p{}", work.seed), work, &[]));
    for _ in 0..2 {
        let before = moved.moved().0;
        until("memory moves", || moved.moved().0 > before + 8 * MIB);
        let pid = moved.moves().mover.pid().unwrap();
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        // A mover that ends again just after it was started is not replaced at once.
        thread::sleep(Duration::from_millis(1_100));
    }
    let results = running.map(|child| output_text(&child.wait_with_output().unwrap()));
    assert_eq!(results, expected);
}

#[test]
fn after_loss_of_the_daemon_programs_end_and_use_no_lost_memory() {
    let mut moved = Moved::new(48, 128);
    let works = [40, 41, 42].map(Work::of);
    let expected = works.map(|work| moved.alone(work));
    let running = works.map(|work| moved.run(&format!("p{}", work.seed), work, &[]));
    until("memory of a program is away", || moved.moved().1 > 20 * MIB);
    moved.bench.daemon = None;
    let old_gpu = std::mem::replace(&mut moved.bench.gpu, FakeGpu::new());
    until("the old GPU is released", || {
        Arc::strong_count(&old_gpu) == 1
    });
    drop(old_gpu);
    let mut lost = 0;
    for (child, expected) in running.into_iter().zip(expected) {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(70) {
            assert!(errors.contains("are lost"), "{errors}");
            lost += 1;
        } else {
            assert_eq!(output_text(&output), expected);
        }
    }
    assert!(lost > 0, "memory of a program was away");
}

#[test]
fn sleeping_program_keeps_its_memory_after_an_orderly_daemon_end() {
    let mut moved = Moved::new(36, 128);
    let sleeper = Work {
        steps: 3_000,
        nap_ms: 60,
        ..Work::of(60)
    };
    let expected = moved.alone(sleeper);
    let sleeping = moved.run("sleeper", sleeper, &[]);
    let endless = [61, 62].map(|seed| Work {
        steps: u64::MAX,
        ..Work::of(seed)
    });
    let others = endless.map(|work| moved.run(&format!("busy-{}", work.seed), work, &[]));
    let snapshot = |moved: &Moved| moved.bench.daemon.as_ref().unwrap().host().snapshot();
    until("the sleeper gives way", || {
        let tenants = snapshot(&moved).tenants;
        let gave = |tenant: &TenantSnapshot| {
            let away = tenant.memory.map_or(0, |memory| memory.swapped_bytes);
            tenant.name == "sleeper" && away > 4 * MIB
        };
        tenants.iter().any(gave)
    });
    for mut other in others {
        kill(&other, Signal::TERM);
        other.wait().unwrap();
    }
    let host = moved.bench.daemon.as_ref().unwrap().host();
    host.bring_memory_back();
    until("all of it is back", || {
        host.homecoming() == Homecoming::default()
    });
    moved.bench.daemon = None;
    let old_gpu = std::mem::replace(&mut moved.bench.gpu, FakeGpu::new());
    until("the old GPU is released", || {
        Arc::strong_count(&old_gpu) == 1
    });
    drop(old_gpu);
    assert_eq!(output_text(&sleeping.wait_with_output().unwrap()), expected);
}

#[test]
fn sleeping_program_yields_memory_and_gets_it_back_at_wake_up() {
    let moved = Moved::new(48, 128);
    // It naps for longer than the daemon waits for a program.
    let sleeper = Work {
        steps: 120,
        nap_ms: 700,
        ..Work::of(50)
    };
    let worker = Work {
        steps: 2_000,
        ..Work::of(51)
    };
    let expected = [sleeper, worker].map(|work| moved.alone(work));
    let bounds = ["--memory-high", "0", "--memory-max", "37748736"];
    let sleeping = moved.run("sleeper", sleeper, &bounds);
    let working = moved.run("worker", worker, &["--memory-min", "8388608"]);
    let results = [sleeping, working].map(|child| output_text(&child.wait_with_output().unwrap()));
    assert_eq!(results, expected);
}
