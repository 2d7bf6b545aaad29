//! The front end's budget, in virtual time.

use turnstile_abi::Command;
use turnstile_accounting::{AccountId, Moment};

use super::virtual_runs::given;
use super::*;
use crate::{SoftConfig, VirtualGpu};

/// What a full budget pays for: 1 ms at 100 ns a command.
const SAVED: u64 = 10_000;
/// From one command to the next once it is spent: 100 ns at 1 % of time.
const INTERVAL: u64 = 10_000;
/// The longest that a tenant waits for its budget to grow to a turn of 16 commands.
const TURN: u64 = 16 * INTERVAL;

/// Fills the free entries of a ring with `command` and rings.
fn refill(gpu: &VirtualGpu, channel: &mut PlainChannel, command: &Command) {
    while channel.put.wrapping_sub(channel.state().get) < channel.config.entries {
        channel.push(command);
    }
    channel.ring_watched(gpu);
}

/// Runs until `end`; `guests` is called at each event, and at least once a microsecond.
fn run(gpu: &VirtualGpu, end: Moment, mut guests: impl FnMut(&VirtualGpu)) {
    while gpu.now() < end {
        guests(gpu);
        let step = gpu.now() + Nanos(1_000);
        let next = gpu.next_event().map_or(step, |at| at.min(step));
        gpu.advance_to(next.min(end));
    }
}

/// Kernels that a tenant completes in 100 ms, one in flight, each followed by `others` commands
/// that need no engine.
fn kernels(config: SoftConfig, length: Nanos, others: usize) -> u64 {
    let gpu = VirtualGpu::new(config);
    let mut channel = channel(&gpu, A, 64);
    let launch = kernel(&channel.vm, length);
    let (mut count, mut fence) = (0, 0);
    run(&gpu, Moment(100_000_000), |gpu| {
        if channel.fence().value == fence {
            channel.push(&launch);
            (1..others).for_each(|_| channel.push(&Command::Nop));
            fence = channel.push_fence(false);
            count += 1;
            channel.ring_watched(gpu);
        }
    });
    count
}

#[test]
fn flood_of_nops_leaves_kernels_of_another_tenant_alone() {
    let kernels_beside = |flooders: usize| {
        let gpu = VirtualGpu::new(given());
        let mut victim = channel(&gpu, A, 16);
        let launch = kernel(&victim.vm, Nanos::from_us(50));
        let vm = tenant(&gpu, B);
        let open = |_| vm.open_channel(&gpu, B, 64, 3).unwrap();
        let mut flood: Vec<PlainChannel> = (0..flooders).map(open).collect();
        let end = Moment(50_000_000);
        run(&gpu, end, |gpu| {
            for channel in &mut flood {
                refill(gpu, channel, &Command::Nop);
            }
            while victim.put.wrapping_sub(victim.state().get) < 4 {
                victim.push(&launch);
                victim.push_fence(false);
            }
            victim.ring_watched(gpu);
        });
        let nops: u64 = flood.iter().map(|c| u64::from(c.state().get)).sum();
        (victim.fence().value, nops)
    };
    let (alone, beside) = (kernels_beside(0), kernels_beside(8));
    assert_eq!(beside.0, alone.0);
    assert!(alone.0 >= 999, "{alone:?}");
    let fair = SAVED + 50_000_000 / INTERVAL;
    let nops = beside.1;
    assert!((fair - 16..=fair).contains(&nops), "{nops} of {fair}");
}

#[test]
fn launches_with_a_few_fences_each_are_never_limited() {
    let free = || {
        let mut config = given();
        config.cost.front_end = Nanos::ZERO;
        config
    };
    for (length, others) in [(50_000, 1), (10_000, 1), (1_000, 4)] {
        let count = kernels(given(), Nanos(length), others);
        assert_eq!(count, kernels(free(), Nanos(length), others));
        assert!(count >= 99_000_000 / length, "{count} of {length} ns");
    }
    // A kernel of 1 us pays for 4 commands and 1 us for a tenth of one.
    let paid = (SAVED + 100_000_000 / INTERVAL) / 4;
    let count = kernels(given(), Nanos(1_000), 8);
    assert!((paid - 16..=paid + 16).contains(&count), "{count}, {paid}");
    assert!(kernels(free(), Nanos(1_000), 8) > 90_000);
}

#[test]
fn every_fence_of_a_flood_is_written_in_time() {
    let gpu = VirtualGpu::new(given());
    let vm = tenant(&gpu, A);
    let open = |_| vm.open_channel(&gpu, A, 4096, 3).unwrap();
    let mut flood: Vec<PlainChannel> = (0..4).map(open).collect();
    for channel in &mut flood {
        (0..4096).for_each(|_| {
            channel.push_fence(false);
        });
        channel.ring_watched(&gpu);
    }
    let written = || flood.iter().map(|c| c.fence().value).sum::<u64>();
    assert_eq!(written(), SAVED);
    let rest = 4 * 4096 - SAVED;
    gpu.advance_to(Moment(rest * INTERVAL / 2));
    assert!(written().abs_diff(SAVED + rest / 2) <= 16, "{}", written());
    gpu.run_until_quiet(Moment(rest * INTERVAL + TURN));
    assert_eq!(written(), 4 * 4096);
    assert_eq!(gpu.next_event(), None);
}

/// Spends a tenant's budget; its channels have NOPs left for less than 25 ms.
fn flood(gpu: &VirtualGpu, vm: &Arc<PlainVm>, id: TenantId) -> Vec<PlainChannel> {
    let open = |_| vm.open_channel(gpu, id, 4096, 3).unwrap();
    let mut channels: Vec<PlainChannel> = (0..3).map(open).collect();
    for channel in &mut channels {
        refill(gpu, channel, &Command::Nop);
    }
    channels
}

#[test]
fn words_that_parked_channels_wait_for_are_not_missed() {
    let gpu = VirtualGpu::new(given());
    let vm = tenant(&gpu, A);
    let mut waiter = vm.open_channel(&gpu, A, 8, 3).unwrap();
    let mut fences = vm.open_channel(&gpu, A, 8, 3).unwrap();
    for value in 1..=2 {
        let gpa = fences.fence_gpa;
        waiter.push(&Command::Wait { gpa, value });
    }
    waiter.push_fence(false);
    waiter.ring_watched(&gpu);
    let _nops = flood(&gpu, &vm, A);
    fences.push_fence(false);
    fences.push_fence(false);
    fences.ring_watched(&gpu);
    assert_eq!((fences.fence().value, waiter.fence().value), (0, 0));
    gpu.run_until_quiet(Moment(25_000_000));
    assert_eq!((fences.fence().value, waiter.fence().value), (2, 1));
}

#[test]
fn parked_channel_that_goes_leaves_its_slot_to_others() {
    let gpu = VirtualGpu::new(given());
    let vm = tenant(&gpu, A);
    let nops = flood(&gpu, &vm, A);
    let mut second = vm.open_channel(&gpu, A, 8, 3).unwrap();
    second.push_fence(false);
    second.ring_watched(&gpu);
    assert_eq!(second.fence().value, 0, "the tenant has no budget");
    for channel in nops {
        gpu.close_channel(A, channel.number).unwrap();
    }
    let mut other = channel(&gpu, B, 8);
    other.push_fence(false);
    other.ring_watched(&gpu);
    assert_eq!(other.fence().value, 1, "each account has its own budget");
    gpu.run_until_quiet(Moment(TURN));
    assert_eq!(second.fence().value, 1);
    let _nops = flood(&gpu, &vm, A);
    assert!(gpu.next_event().is_some());
    gpu.destroy_context(A);
    assert_eq!(gpu.next_event(), None);
}

/// A tenant of `account` with one channel.
fn channel_in(gpu: &VirtualGpu, account: u32, id: TenantId) -> PlainChannel {
    let vm = PlainVm::new(1 << 20);
    let resources = vm.resources(AccountId(account), 2 << 20, 8);
    gpu.create_context(id, resources).unwrap();
    let vm = Arc::new(vm);
    vm.open_channel(gpu, id, 64, 3).unwrap()
}

/// An account with tenants that flood.
const FLOODED: u32 = 7;

/// Tenants of [`FLOODED`], from number 100 on.
fn flooders(gpu: &VirtualGpu, count: u32) -> Vec<PlainChannel> {
    let numbers = (100..100 + count).map(TenantId);
    numbers.map(|id| channel_in(gpu, FLOODED, id)).collect()
}

/// Kernels of 50 us that a tenant of `account` completes in 50 ms with 4 of them queued, each with
/// `others` commands that need no engine, beside flooders. Returns also what each flooder executed.
fn beside(account: u32, others: usize, flooding: u32) -> (u64, Vec<u64>) {
    let gpu = VirtualGpu::new(given());
    let mut victim = channel_in(&gpu, account, A);
    let launch = kernel(&victim.vm, Nanos::from_us(50));
    let mut flood = flooders(&gpu, flooding);
    run(&gpu, Moment(50_000_000), |gpu| {
        for channel in &mut flood {
            refill(gpu, channel, &Command::Nop);
        }
        let pushed = 1 + others as u32;
        while victim.put.wrapping_sub(victim.state().get) < 4 * pushed {
            victim.push(&launch);
            (1..others).for_each(|_| victim.push(&Command::Nop));
            victim.push_fence(false);
        }
        victim.ring_watched(gpu);
    });
    let executed = flood.iter().map(|channel| u64::from(channel.state().get));
    (victim.fence().value, executed.collect())
}

#[test]
fn flooding_tenants_of_one_account_share_the_budget_of_one() {
    let fair = SAVED + 50_000_000 / INTERVAL;
    let (alone, _) = beside(1, 1, 0);
    for count in [1, 8] {
        let (kernels, executed) = beside(1, 1, count);
        assert_eq!(kernels, alone, "the victim of another account");
        let all: u64 = executed.iter().sum();
        assert!((fair - 16..=fair).contains(&all), "{all} of {fair}");
        let refilled = 50_000_000 / INTERVAL / u64::from(count);
        let least = *executed.iter().min().unwrap();
        assert!(least + 32 >= refilled, "each has its turn: {executed:?}");
    }
    assert!(alone >= 999, "{alone}");
}

#[test]
fn launches_with_a_few_fences_each_are_not_limited_by_tenants_of_their_account() {
    // Its first command may wait for one turn of each flooder.
    let turns = 9 * TURN / 50_000;
    for others in [1, 4] {
        let (alone, _) = beside(FLOODED, others, 0);
        let (kernels, executed) = beside(FLOODED, others, 8);
        assert!(kernels + turns + 1 >= alone, "{kernels} of {alone}");
        assert!(executed.iter().sum::<u64>() > SAVED / 2);
    }
}

#[test]
fn fence_is_written_beside_tenants_of_its_account_that_always_have_new_commands() {
    let gpu = VirtualGpu::new(given());
    let mut flood = flooders(&gpu, 8);
    let mut late = channel_in(&gpu, FLOODED, A);
    // One command at a time: a channel of these is hardly ever parked for long.
    let trickle = |gpu: &VirtualGpu, flood: &mut [PlainChannel]| {
        for channel in flood {
            if channel.state().get == channel.put {
                channel.push(&Command::Nop);
                channel.ring_watched(gpu);
            }
        }
    };
    run(&gpu, Moment(20_000_000), |gpu| trickle(gpu, &mut flood));
    late.push_fence(false);
    late.ring_watched(&gpu);
    let end = Moment(20_000_000 + 10 * TURN);
    run(&gpu, end, |gpu| trickle(gpu, &mut flood));
    assert_eq!(late.fence().value, 1);
}

#[test]
fn tenants_that_come_and_go_have_no_more_than_one_that_stays() {
    let gpu = VirtualGpu::new(given());
    let mut executed = 0;
    for number in 0..50 {
        let mut channel = channel_in(&gpu, FLOODED, TenantId(200 + number));
        let end = Moment(u64::from(number + 1) * 1_000_000);
        run(&gpu, end, |gpu| refill(gpu, &mut channel, &Command::Nop));
        executed += u64::from(channel.state().get);
        gpu.destroy_context(channel.tenant);
    }
    let fair = SAVED + 50_000_000 / INTERVAL;
    let lost = 50 * 2 * 16;
    assert!(
        (fair - lost..=fair).contains(&executed),
        "{executed} of {fair}"
    );
    // An account that stays away for long enough finds its budget full again.
    gpu.advance_to(Moment(200_000_000));
    let mut channel = channel_in(&gpu, FLOODED, A);
    let end = Moment(201_000_000);
    run(&gpu, end, |gpu| refill(gpu, &mut channel, &Command::Nop));
    let fair = SAVED + 1_000_000 / INTERVAL;
    assert!((fair - 16..=fair).contains(&u64::from(channel.state().get)));
}
