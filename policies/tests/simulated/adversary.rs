//! Service of victims beside attackers: the known attacks, and a search for worse ones.

use crate::attacks::{ATTACKERS, Kind, attacks, mutate, random_case, victims};
use crate::load::{Guest, Load, Random};
use crate::sim::{Setup, Sim};
use std::collections::{BTreeMap, BTreeSet};
use turnstile_accounting::Nanos;
use turnstile_policies::{Policy, Tuning, policy_by_name};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const REACTION_NS: u64 = 10_000;
/// Decisions that may be due for each event of the engine, the guests or the period.
const DECISIONS_MAX: f64 = 4.0;

/// A victim, which is the first guest, beside attackers.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    kind: Kind,
    guests: Vec<Guest>,
    /// Kernels can be stopped.
    stops: bool,
    /// The part of the engine that the victim's weight gives it.
    part: f64,
    /// What it is entitled to: of the time, and in any window of all service.
    entitled: (f64, f64),
    accounts: u64,
    length_ns: u64,
}

/// Service of the victim after a quarter of the time, or a second.
#[derive(Clone, Copy, Debug)]
struct Judged {
    /// Fractions of all service, and of the time less switching.
    served: f64,
    wall: f64,
    /// What it lacked of its part in the worst window.
    shortfall_ns: u64,
    ran_ns: u64,
    /// Time in which it had work, less switching, and the number of arrivals of its work.
    wanted_ns: u64,
    arrivals: u64,
    /// Idle time in reservations that expired, from the start.
    expired_ns: u64,
    expired_max_ns: u64,
    idle_max_ns: u64,
    /// Decisions that were due, for each other event.
    decisions: f64,
}

pub(crate) fn policy(name: &str, stops: bool) -> Box<dyn Policy> {
    let tuning = Tuning {
        preemption_ns: stops.then_some(Nanos::from_us(20)),
        ..Tuning::default()
    };
    policy_by_name(name).unwrap().policy(&tuning).unwrap()
}

pub(crate) fn setup(stops: bool) -> Setup {
    Setup {
        period_ns: MS,
        reaction_ns: REACTION_NS,
        switch_ns: if stops { 2_000 } else { 0 },
        stops,
        seed: 1,
    }
}

fn longest_kernel_ns(guests: &[Guest]) -> u64 {
    let kernels = guests.iter().filter_map(|guest| match &guest.load {
        Load::Program(program) => program.kernels_ns.iter().max(),
        Load::Closed { .. } | Load::Open { .. } => None,
    });
    kernels.max().copied().unwrap_or(0)
}

impl Case {
    /// A victim that uses its part of the engine, beside attackers of any accounts.
    pub(crate) fn beside(kind: Kind, victim: Guest, attackers: Vec<Guest>, stops: bool) -> Self {
        let accounts: BTreeSet<_> = attackers.iter().map(|guest| guest.account).collect();
        let accounts = 1 + accounts.len() as u64;
        let part = 1.0 / accounts as f64;
        let length_ns = match longest_kernel_ns(&attackers) {
            0..=50_000_000 => 2 * SECOND_NS,
            _ => 10 * SECOND_NS,
        };
        Self {
            kind,
            guests: std::iter::once(victim).chain(attackers).collect(),
            stops,
            part,
            entitled: (part, part),
            accounts,
            length_ns,
        }
    }

    fn judge(&self) -> Judged {
        let mut policy = policy("dfq", self.stops);
        let mut sim = Sim::new(policy.as_mut(), &self.guests, setup(self.stops));
        let start_ns = SECOND_NS.min(self.length_ns / 4);
        sim.run(policy.as_mut(), start_ns);
        // A victim that pauses more than it runs waits for one kernel at each arrival.
        let per_arrival_ns = match self.kind {
            Kind::Saturates | Kind::Runs => 0,
            Kind::Pauses => longest_kernel_ns(&self.guests),
        };
        sim.entitle(self.entitled.1, per_arrival_ns);
        let (totals, wanted, switching) = (sim.served_until_now(), sim.wanted(0), sim.switching_ns);
        let end_ns = start_ns + self.length_ns;
        sim.run(policy.as_mut(), end_ns);
        let got = sim.served_until_now();
        let got: Vec<u64> = got
            .iter()
            .zip(totals)
            .map(|(now, then)| now - then)
            .collect();
        let switching = sim.switching_ns - switching;
        let wanted_ns = sim.wanted(0).1 - wanted.1;
        Judged {
            served: got[0] as f64 / got.iter().sum::<u64>() as f64,
            wall: got[0] as f64 / (self.length_ns - switching) as f64,
            shortfall_ns: sim.shortfall_ns(),
            ran_ns: got[0],
            wanted_ns: wanted_ns.saturating_sub(switching),
            arrivals: sim.wanted(0).0 - wanted.0,
            expired_ns: sim.expired_ns,
            expired_max_ns: self.accounts * (end_ns / 100 + 10 * MS),
            idle_max_ns: sim.idle_held_max_ns,
            decisions: sim.decisions as f64 / sim.other_events as f64,
        }
    }

    /// Each promise and its margin; a negative margin breaks it.
    fn margins(&self, judged: &Judged) -> Vec<(&'static str, f64)> {
        let ms = |ns: f64| ns / MS as f64;
        let kernel_ms = ms(longest_kernel_ns(&self.guests) as f64);
        // The patience; where kernels can be stopped, the time that two preemptions take.
        let longest_ns = if self.stops { 40_000 } else { MS };
        let mut margins = vec![
            (
                "expired reservations",
                ms(judged.expired_max_ns as f64 - judged.expired_ns as f64),
            ),
            (
                "longest reservation",
                ms((longest_ns + REACTION_NS) as f64 - judged.idle_max_ns as f64),
            ),
            ("decisions", DECISIONS_MAX - judged.decisions),
        ];
        if self.stops {
            let due_ns =
                0.93 * self.part * judged.wanted_ns as f64 - (2 * MS * judged.arrivals) as f64;
            margins.push((
                "ran of the time with work",
                ms(judged.ran_ns as f64 - due_ns),
            ));
            if self.kind == Kind::Saturates {
                let least = 100.0 * self.entitled.0 - 2.0;
                margins.push(("part of the time", 100.0 * judged.wall - least));
            }
        } else {
            let most_ms = kernel_ms + 2.0;
            margins.push(("worst window", most_ms - ms(judged.shortfall_ns as f64)));
        }
        margins
    }

    pub(crate) fn check(&self, name: &str) {
        let judged = self.judge();
        for (promise, margin) in self.margins(&judged) {
            assert!(
                margin >= 0.0,
                "{name}: {promise}: {margin:.3}: {judged:?} of {self:?}"
            );
        }
    }
}

/// The part of the time that guests use if they have the engine alone.
fn alone(guests: &[Guest]) -> f64 {
    let length_ns = match longest_kernel_ns(guests) {
        0..=20_000_000 => SECOND_NS / 4,
        _ => 10 * SECOND_NS,
    };
    let mut policy = policy("none", false);
    let mut sim = Sim::new(policy.as_mut(), guests, setup(false));
    sim.run(policy.as_mut(), length_ns);
    sim.served_until_now().iter().sum::<u64>() as f64 / length_ns as f64
}

/// The part of the time that a program uses if it has the engine alone, and at half of it.
fn program_alone(guest: &Guest) -> (f64, f64) {
    let Load::Program(program) = &guest.load else {
        panic!("victims are programs");
    };
    let commands = if program.batch { program.depth } else { 1 };
    let runs = (program.kernels_ns[0] * commands as u64) as f64;
    let pause = if program.depth > commands {
        0
    } else {
        program.pauses_ns[0]
    };
    (
        runs / (runs + pause as f64),
        runs / (2.0 * runs + pause as f64),
    )
}

/// Every attack on every victim. Each case takes ten seconds, or as long as its kernels need.
fn cases(stops: bool, in_full: bool) -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for (attack, attackers) in attacks() {
        let attackers_alone = alone(&attackers);
        let length_ns = match longest_kernel_ns(&attackers) {
            _ if in_full => 10 * SECOND_NS,
            0..=20_000_000 => SECOND_NS / 5,
            20_000_001..=200_000_000 => 2 * SECOND_NS,
            _ if stops => 2 * SECOND_NS,
            _ => 6 * SECOND_NS,
        };
        for (name, kind, victim) in victims() {
            let (victim_alone, at_half) = program_alone(&victim);
            let of_wall = victim_alone.min((1.0 - attackers_alone).max(0.5));
            let of_served = of_wall / (of_wall + attackers_alone.min(1.0 - of_wall));
            let most = match kind {
                Kind::Saturates | Kind::Runs => 0.5,
                Kind::Pauses => at_half,
            };
            let guests = std::iter::once(victim).chain(attackers.clone()).collect();
            let case = Case {
                kind,
                guests,
                stops,
                part: 0.5,
                entitled: (of_wall, of_served.min(most)),
                accounts: 2,
                length_ns,
            };
            cases.push((format!("{name}, {attack}"), case));
        }
    }
    cases
}

#[test]
fn attacks_take_one_kernel_in_the_worst_window() {
    for (name, case) in cases(false, false) {
        case.check(&name);
    }
}

#[test]
fn attacks_gain_nothing_where_kernels_can_be_stopped() {
    for (name, case) in cases(true, false) {
        case.check(&name);
    }
}

/// Random attackers, and after a while variants of the worst ones: case by case.
struct Search {
    stops: bool,
    random: Random,
    victims: Vec<(&'static str, Kind, Guest)>,
    /// For each victim and promise the worst cases yet.
    worst: BTreeMap<(usize, &'static str), Vec<Known>>,
}

/// A margin, and the attackers that caused it.
type Known = (f64, Vec<Guest>);

impl Search {
    fn new(stops: bool, seed: u64) -> Self {
        let mut victims = victims();
        victims.retain(|(_, kind, _)| *kind != Kind::Pauses);
        Self {
            stops,
            random: Random(seed),
            victims,
            worst: BTreeMap::new(),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        self.random.within(0, count as u64 - 1) as usize
    }

    fn next(&mut self) -> (usize, Case) {
        let index = self.pick(self.victims.len());
        let lists = self
            .worst
            .iter()
            .filter(|((victim, _), _)| *victim == index);
        let known: Vec<Vec<Guest>> = lists
            .flat_map(|(_, list)| list.iter().map(|(_, case)| case.clone()))
            .collect();
        let mut attackers = if known.is_empty() || self.pick(2) == 0 {
            random_case(&mut self.random)
        } else {
            let index = self.pick(known.len());
            mutate(&mut self.random, &known[index])
        };
        let apart = self.pick(4) == 0;
        for (account, attacker) in (ATTACKERS..).zip(&mut attackers) {
            attacker.account = Some(if apart { account } else { ATTACKERS });
        }
        let (_, kind, victim) = self.victims[index].clone();
        let case = Case::beside(kind, victim, attackers, self.stops);
        (index, case)
    }

    /// Tries `cases` cases.
    fn run(&mut self, cases: u32) -> Worst {
        let mut worst = Worst::default();
        for number in 0..cases {
            let (index, case) = self.next();
            let name = format!("{number}");
            for (promise, margin) in worst.note(self.victims[index].0, &name, &case) {
                let list = self.worst.entry((index, promise)).or_default();
                list.push((margin, case.guests[1..].to_vec()));
                list.sort_by(|one, other| one.0.total_cmp(&other.0));
                list.truncate(6);
            }
        }
        worst
    }
}

#[test]
fn attacks_at_random_take_one_kernel_in_the_worst_window() {
    Search::new(false, 1).run(40).assert();
}

#[test]
fn attacks_at_random_gain_nothing_where_kernels_can_be_stopped() {
    Search::new(true, 2).run(40).assert();
}

#[test]
#[ignore = "takes minutes: cargo test --release -p turnstile-policies -- --ignored --nocapture search"]
fn search_for_attacks() {
    let worst = Search::new(false, 1).run(10_000);
    worst.print();
    worst.assert();
}

#[test]
#[ignore = "takes minutes: cargo test --release -p turnstile-policies -- --ignored --nocapture search"]
fn search_for_attacks_where_kernels_can_be_stopped() {
    let worst = Search::new(true, 2).run(10_000);
    worst.print();
    worst.assert();
}

/// The worst margins, by victim and promise.
#[derive(Default)]
struct Worst(BTreeMap<(String, &'static str), (f64, String)>);

impl Worst {
    /// Runs a case; returns its margins.
    fn note(&mut self, victim: &str, name: &str, case: &Case) -> Vec<(&'static str, f64)> {
        let judged = case.judge();
        let margins = case.margins(&judged);
        for (promise, margin) in &margins {
            let key = (victim.to_string(), *promise);
            let worst = self.0.entry(key).or_insert((f64::MAX, String::new()));
            if *margin < worst.0 {
                let served = 100.0 * (judged.served - case.entitled.1);
                let wall = 100.0 * (judged.wall - case.entitled.0);
                let progress = judged.ran_ns as f64 / judged.wanted_ns as f64 / case.part;
                *worst = (
                    *margin,
                    format!(
                        "{name}: served {served:+.2}, time {wall:+.2} points, ran {progress:.3} \
                         of its part of the time with work; {judged:?}; {:?}",
                        &case.guests[1..]
                    ),
                );
            }
        }
        margins
    }

    fn print(&self) {
        for ((victim, promise), (margin, case)) in &self.0 {
            println!("{victim}: {promise}: {margin:.3}: {case}");
        }
    }

    fn assert(&self) {
        for ((victim, promise), (margin, case)) in &self.0 {
            assert!(*margin >= 0.0, "{victim}: {promise}: {margin:.3}: {case}");
        }
    }
}

#[test]
#[ignore = "takes minutes: cargo test --release -p turnstile-policies -- --ignored --nocapture in_full"]
fn attacks_in_full() {
    for stops in [false, true] {
        let mut worst = Worst::default();
        for (name, case) in cases(stops, true) {
            worst.note(&format!("{stops} {:?}", case.kind), &name, &case);
        }
        worst.print();
    }
}
