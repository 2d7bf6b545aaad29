//! Figures that the host reports of tenants and accounts, and answers of a VM's threads. Each
//! figure differs from all others.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use turnstile_abi::regs::status;
use turnstile_abi::{CHUNK_BYTES, PAGE_BYTES};
use turnstile_accounting::{EngineState, Moment, Nanos, SwitchEvent};
use turnstile_gpu::Capabilities;
use turnstile_host::memory_file::memory_file;
use turnstile_vmm::wire::Region;

use super::debts::KeptDebt;
use super::dma::{Change, change_memory, guest_memory};
use super::recording_gpu::{Call, GATES};
use super::settings::{MemoryLimits, SettingsError};
use super::test_bench::{Bench, PERIOD, done, usage};
use super::timings::{Seen, Timings};
use super::*;
use crate::accounts::{Entry, Rule};

/// TIMEOUT: of a thread of one VM on a machine that builds at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

const MS: u64 = 1_000_000;

fn rule(weight: u32) -> Option<Rule> {
    let entry = Entry {
        weight: Weight::new(weight).unwrap(),
        ..Entry::default()
    };
    Some(Rule { entry, uid: None })
}

fn word(page: &File, at: u64) -> u32 {
    let mut bytes = [0; 4];
    page.read_exact_at(&mut bytes, at).unwrap();
    u32::from_ne_bytes(bytes)
}

fn long(page: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    page.read_exact_at(&mut bytes, at).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Two tenants of one account with time on all engines; the first one has a limit of memory.
fn two(bench: &mut Bench) -> [TenantId; 2] {
    let both = [bench.open("a", 300), bench.open("b", 70)];
    let [a, b] = both;
    let limited = settings::Settings {
        weight: Weight::new(300).ok(),
        cap: turnstile_policies::Cap::new(Nanos(40 * MS), Nanos(100 * MS)).ok(),
        memory: MemoryLimits {
            max_bytes: Some(3 * CHUNK_BYTES),
            ..MemoryLimits::default()
        },
        ..settings::Settings::default()
    };
    bench.host.set_settings("a", Some(limited)).unwrap();
    bench.gpu.reported().running = [Some(a), Some(b), None];
    bench.gpu.reported().held_bytes = vec![(a, 11), (b, 13)];
    let mut usage = usage(Moment(0), [&[(a, 5), (b, 2)], &[(a, 3)], &[(a, 4), (b, 1)]]);
    usage.copied = Some([(a, 77), (b, 31)].into());
    bench.busy = both.to_vec();
    bench.close(usage);
    both
}

#[test]
fn guest_reads_its_own_figures_and_no_other_tenants() {
    let mut bench = Bench::new(GATES);
    let [a, b] = two(&mut bench);
    let engines = |page: &File| [0, 4, 8].map(|at| word(page, status::ENGINE_STATE + at));
    let pages = [&bench.pages[&a], &bench.pages[&b]];
    use status::engine_state::{IDLE, OTHER, OWN};
    assert_eq!(engines(pages[0]), [OWN, OTHER, IDLE]);
    assert_eq!(engines(pages[1]), [OTHER, OWN, IDLE]);
    let longs = |at: u64| pages.map(|page| long(page, at));
    assert_eq!(longs(status::COMPUTE_NS), [5 * MS, 2 * MS]);
    assert_eq!(longs(status::COPY_NS), [7 * MS, MS]);
    assert_eq!(longs(status::UPDATED_AT_NS), [PERIOD.0; 2]);
    let words = |at: u64| pages.map(|page| word(page, at));
    assert_eq!(words(status::WEIGHT), [300, 70]);
    let of = |tenant| bench.host.account(tenant);
    let account = Account {
        weight: 300,
        compute_ns: 5 * MS,
        copy_ns: 7 * MS,
        memory_max_bytes: Some(3 * CHUNK_BYTES),
    };
    assert_eq!(of(a), account);
    assert_eq!((of(b).weight, of(b).memory_max_bytes), (70, None));
}

#[test]
fn held_time_goes_on_in_the_page_and_the_snapshot_while_a_tenant_is_held() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.busy = vec![a, b];
    bench.period(&[(a, 9), (b, 1)]);
    bench.period(&[]);
    let held = |bench: &Bench| {
        let page = &bench.pages[&a];
        let shown = bench.host.snapshot().tenants[0].clone();
        assert_eq!(shown.held_ns.0, long(page, status::HELD_NS));
        let admitted = word(page, status::ADMITTED);
        assert_eq!(u32::from(shown.admitted), admitted);
        (shown.held_ns, admitted, shown.tally.held_ahead)
    };
    assert_eq!(held(&bench), (PERIOD, 0, 1));
    bench.period(&[(b, 10)]);
    let two = PERIOD + PERIOD;
    assert_eq!(held(&bench), (two, 1, 1), "it is over");
    bench.period(&[(a, 10)]);
    assert_eq!(held(&bench), (two, 0, 2), "and begins anew");
    bench.period(&[]);
    assert_eq!(held(&bench), (two + PERIOD, 0, 2));
}

#[test]
fn snapshot_has_each_tenants_and_accounts_figures() {
    let mut bench = Bench::new(GATES);
    let [a, b] = two(&mut bench);
    let snapshot = bench.host.snapshot();
    let shown = &snapshot.tenants[0];
    assert_eq!((shown.tenant, &*shown.name), (a, "a"));
    assert_eq!((&*shown.account, shown.weight), ("uid-1000", 300));
    assert_eq!(shown.cap.unwrap().quota_ns(), Nanos(40 * MS));
    assert_eq!(shown.compute_ns, Nanos(5 * MS));
    assert_eq!(shown.copy_ns, Nanos(7 * MS));
    assert_eq!(shown.copy_bytes, Some(77));
    assert_eq!(shown.engine_ns, shown.compute_ns, "by the same log");
    assert_eq!(shown.slices, 1);
    assert!(shown.backlogged && shown.waited_ns == Nanos(5 * MS));
    assert_eq!(shown.memory_held_bytes, Some(11));
    assert_eq!(shown.memory_limit_bytes, Some(3 * CHUNK_BYTES));
    assert_eq!(
        snapshot.tenants[1].memory_limit_bytes,
        Some(8 * CHUNK_BYTES)
    );
    assert_eq!(snapshot.at, Moment(0) + PERIOD);
    assert_eq!(snapshot.memory_bytes, GATES.memory_bytes);
    assert_eq!(snapshot.conservation_error_ns, 0);
    assert_eq!(
        snapshot.owners,
        [("a".to_owned(), "uid-1000".to_owned())].into()
    );
    let account = |bench: &Bench| {
        let account = bench.host.snapshot().accounts[0].clone();
        (account.compute_ns, account.copy_ns, account.copy_bytes)
    };
    let all = (Nanos(7 * MS), Nanos(8 * MS), Some(108));
    assert_eq!(account(&bench), all);
    // Gone and settled: the account keeps what its tenants used.
    bench.host.leave(a);
    bench.host.leave(b);
    assert_eq!(account(&bench), all);
    let departed = bench.host.snapshot().departed;
    let left: Vec<_> = departed
        .iter()
        .map(|one| (one.copy_ns, one.copy_bytes))
        .collect();
    let expected = [(Nanos(7 * MS), Some(77)), (Nanos(MS), Some(31))];
    assert_eq!(left, expected);
    assert!(departed.iter().all(|one| !one.backlogged && !one.admitted));
    bench.busy.clear();
    bench.gpu.reported().now = Moment(0) + Nanos::from_ms(61_000);
    bench.period(&[]);
    assert!(bench.host.lock().leaving.is_empty());
    assert_eq!(account(&bench), all);
    let departed = bench.host.snapshot().departed;
    let left: Vec<_> = departed
        .iter()
        .map(|one| (one.copy_ns, one.copy_bytes))
        .collect();
    assert_eq!(left, expected);
    bench.gpu.reported().now = Moment(0) + Nanos::from_ms(400_000);
    bench.period(&[]);
    assert!(bench.host.snapshot().departed.is_empty());
}

#[test]
fn snapshot_is_not_waited_for_while_the_state_is_locked() {
    let bench = Bench::new(GATES);
    assert!(bench.host.try_snapshot(Duration::ZERO).is_some());
    let state = bench.host.lock();
    assert!(bench.host.try_snapshot(Duration::from_millis(1)).is_none());
    std::thread::scope(|scope| {
        let (begins, begun) = std::sync::mpsc::channel();
        let host = &bench.host;
        let reader = scope.spawn(move || {
            begins.send(()).unwrap();
            host.try_snapshot(PATIENCE).is_some()
        });
        begun.recv().unwrap();
        // The reader may find the state locked or not: it gets it.
        std::thread::sleep(Duration::from_millis(5));
        drop(state);
        assert!(reader.join().unwrap());
    });
}

#[test]
fn weight_of_tenants_that_name_none_may_change() {
    let bench = Bench::of_policy(GATES, "dfq-literal");
    assert_eq!(bench.host.policy(), "dfq-literal");
    assert_eq!(bench.host.default_weight(), Weight::DEFAULT);
    let weight = |value| Weight::new(value).unwrap();
    bench.host.set_default_weight(weight(250));
    assert_eq!(bench.host.default_weight(), weight(250));
}

/// Accounts of 300 and 100; each has a tenant with work.
#[test]
fn account_divides_by_the_weight_that_was_set_while_its_tenants_run() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter_as(1_000, "a", 100);
    let b = bench.enter_as(1_001, "b", 100);
    assert_eq!(bench.host.lock().accounts.changes(), 2);
    bench.busy = vec![a, b];
    bench.period(&[(a, 5), (b, 5)]);
    let entitled = |bench: &Bench| {
        let tenants = bench.host.snapshot().tenants;
        [tenants[0].entitled_ns.0, tenants[1].entitled_ns.0]
    };
    assert_eq!(entitled(&bench), [5 * MS, 5 * MS]);
    bench
        .host
        .check_account("uid-1000", rule(300).as_ref())
        .unwrap();
    let occupied = bench.host.check_account("uid-1000", None);
    assert!(occupied.is_err(), "a tenant of it is connected");
    bench.host.set_account("uid-1000", rule(300)).unwrap();
    bench.period(&[(a, 5), (b, 5)]);
    assert_eq!(entitled(&bench), [12_500_000, 7_500_000]);
    assert_eq!(bench.host.lock().accounts.changes(), 3);
    let (made, names) = bench.host.kept_accounts();
    assert_eq!(made["uid-1000"].weight, Weight::new(300).unwrap());
    let owned = [("a", "uid-1000"), ("b", "uid-1001")];
    assert!(names.iter().map(|(name, of)| (&**name, &**of)).eq(owned));
    assert_eq!(made.len(), 1);
    // The same name again is no change, a name that is freed is one.
    bench.host.leave(b);
    bench.enter_as(1_001, "b", 100);
    assert_eq!(bench.host.lock().accounts.changes(), 3);
    bench.host.leave(a);
    bench.host.forget_name("a");
    assert_eq!(bench.host.lock().accounts.changes(), 4);
    assert_eq!(bench.host.owner("a"), None);
}

#[test]
fn terms_that_the_policy_does_not_know_are_refused() {
    let entry = |weight| rule(weight).unwrap().entry;
    let none = Bench::of_policy(GATES, "none").host;
    assert!(matches!(
        none.check_terms(&entry(300)),
        Err(SettingsError::Policy { .. })
    ));
    none.check_terms(&entry(100)).unwrap();
    Bench::new(GATES).host.check_terms(&entry(300)).unwrap();
}

#[test]
fn debt_of_an_earlier_run_is_in_force_for_its_own_tenant_alone() {
    let debt = |account: &str, tenant: Option<&str>, ms| KeptDebt {
        gpu: None,
        engine: 0,
        account: account.into(),
        tenant: tenant.map(str::to_owned),
        ahead_ns: ms * MS,
    };
    let debts = [
        debt("uid-1000", Some("a"), 50),
        debt("uid-1000", Some("other"), 60),
        debt("uid-1001", Some("a"), 70),
        debt("uid-1000", None, 80),
    ];
    let mut bench = Bench::new(GATES);
    bench.host.lock().accounts.debts.restore(debts.to_vec());
    assert_eq!(bench.host.debts(), debts);
    let b = bench.open("b", 100);
    // The account's debt is in force with its first tenant, a name's with the tenant.
    let kept = |bench: &Bench| bench.host.lock().accounts.debts.0.clone();
    assert_eq!(kept(&bench), debts[..3]);
    bench.busy = vec![b];
    bench.period(&[(b, 10)]);
    let a = bench.open("a", 100);
    assert_eq!(kept(&bench), debts[1..3]);
    bench.busy = vec![a, b];
    bench.period(&[(a, 5), (b, 5)]);
    let shown = bench.host.debts();
    assert_eq!(shown[..2], debts[1..3]);
    let own = shown[2..]
        .iter()
        .find(|debt| debt.tenant.as_deref() == Some("a"));
    let own = own.expect("its debt is the policy's now");
    assert_eq!((own.engine, &*own.account), (0, "uid-1000"));
    assert!(own.ahead_ns >= 40 * MS, "{own:?}");
    assert!(!bench.host.lock().mediation.admitted(a), "it is ahead of b");
}

#[test]
fn wait_begins_with_a_doorbell_of_a_tenant_that_is_not_on_the_engine() {
    let mut bench = Bench::new(GATES);
    let (a, b) = (bench.open("a", 100), bench.open("b", 100));
    bench.host.lock().records.timings = Timings::default();
    bench.gpu.reported().running[0] = Some(a);
    bench.gpu.reported().now = Moment(1_000);
    bench.host.kicked(a);
    bench.host.kicked(b);
    let mut seen = Seen::default();
    for (seq, tenant) in [(0, a), (1, b)] {
        let at = Moment(5_000);
        let state = EngineState::Running(tenant);
        let engine = COMPUTE;
        seen.event(&SwitchEvent {
            at,
            engine,
            seq,
            state,
        });
    }
    bench.host.lock().records.timings.take(&mut seen);
    let waits: Vec<_> = bench
        .host
        .snapshot()
        .tenants
        .iter()
        .map(|one| one.latency)
        .collect();
    assert_eq!([waits[0].count(), waits[1].count()], [0, 1]);
    assert_eq!(waits[1].sum(), Nanos(4_000));
}

#[test]
fn usage_that_does_not_balance_is_counted_and_charged_to_no_tenant() {
    let mut bench = Bench::new(GATES);
    let a = bench.open("a", 100);
    for wrong in 1..=2 {
        let mut usage = usage(Moment(0), [&[(a, 5)], &[], &[]]);
        usage.engines[0].idle_ns += Nanos(1);
        bench.close(usage);
        assert_eq!(bench.host.snapshot().ledger_errors, wrong);
    }
    assert_eq!(bench.host.snapshot().tenants[0].compute_ns, Nanos::ZERO);
}

/// Waits for what a thread of the VM sends.
fn sent(bench: &mut Bench, wanted: impl Fn(&ToVmm) -> bool) -> ToVmm {
    let begin = Instant::now();
    loop {
        let found = bench.take().into_iter().find_map(|call| match call {
            Call::Sent(_, message) if wanted(&message) => Some(message),
            _ => None,
        });
        if let Some(message) = found {
            return message;
        }
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn memory_of_a_vm_is_mapped_counted_and_given_back() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 100);
    let used = |bench: &Bench| bench.host.limits().of_tenant(a)["guest_memory_bytes"].used;
    let bytes = 4 * PAGE_BYTES;
    let region = Region {
        gpa: 0x1000,
        bytes,
        file_offset: 0,
    };
    let fd = || memory_file("test", bytes).unwrap().into();
    let map = |region, fd| Change::Map { region, fd };
    let unmap = Change::Unmap { gpa: 0x1000, bytes };
    let changes = [
        (1, map(region, fd()), true, bytes),
        (2, map(region, fd()), false, bytes),
        (3, unmap, true, 0),
    ];
    for (number, change, made, left) in changes {
        assert!(change_memory(&bench.host, a, number, change));
        let is_answer = |message: &ToVmm| matches!(message, ToVmm::MemoryDone { .. });
        let answer = sent(&mut bench, is_answer);
        let ToVmm::MemoryDone { id, refused } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((id, refused.is_none()), (number, made), "{refused:?}");
        assert_eq!(used(&bench), left);
    }
    assert!(change_memory(
        &bench.host,
        TenantId(9),
        4,
        map(region, fd())
    ));
    // A GPU that has the first state throughout.
    let fixed = Capabilities {
        follows_guest_memory: false,
        ..GATES
    };
    let refused = guest_memory(&Bench::new(fixed).host, None, &[], {
        let state = bench.host.lock();
        state.tenants[&a].holder.clone()
    });
    assert!(refused.is_err(), "no memory at all");
}

#[test]
fn mailbox_answers_with_the_requests_number_and_result_or_refusal() {
    let mut bench = Bench::new(GATES);
    let a = bench.enter("a", 300);
    let mut ask = |op: u32, item: u64| {
        let args = [item, 0, 0, 0, 0, 0, 0, 0];
        let id = u64::from(op) * 100 + item;
        assert!(bench.host.mailbox(a, Letter { id, op, args }));
        let answered = |message: &ToVmm| matches!(message, ToVmm::MailboxDone { .. });
        match sent(&mut bench, answered) {
            ToVmm::MailboxDone {
                id: of,
                error,
                text,
                results,
            } => {
                assert_eq!(of, id);
                (error, text.is_empty(), results[0])
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(8, 2), (0, true, 300), "its weight");
    let (error, _, result) = ask(99, 0);
    assert!(error != 0 && result == 0);
}

#[test]
fn gates_of_a_tenant_that_left_or_that_hangs_up_are_not_moved() {
    let mut bench = Bench::new(GATES);
    let a = bench.open("a", 100);
    bench.host.leave(a);
    bench.take();
    bench.host.mailbox_served(a, Effect::Opened(1), &done(1));
    bench.host.gate_done(a, 0, 1, 0);
    assert!(bench.take().is_empty());
}
