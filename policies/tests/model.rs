//! The laws of the models and of placement, over random inputs.

use proptest::prelude::*;
use turnstile_policies::model::blocks::makespan;
use turnstile_policies::model::processes::{Fit, Scenario, Stages};
use turnstile_policies::model::sm::{Kernel, Program, throughput};
use turnstile_policies::model::split::Split;
use turnstile_policies::model::take::{Block, Known, Pair, Take, Thresholds, choose};
use turnstile_policies::place::{Fleet, GpuSize, Job, PlaceError, RULES, Rule, rule_by_name};

const SMS: u32 = 12;

fn any_program() -> impl Strategy<Value = Program> {
    (1u32..400, 1u32..9, 1u32..400, 1u32..9).prop_map(|(blocks, resident, more, other)| {
        let kernel = |time, blocks, resident| Kernel {
            time,
            blocks,
            resident,
        };
        let kernels = [kernel(2.0, blocks, resident), kernel(1.0, more, other)];
        Program::new(&kernels, [blocks, 64, resident], SMS).unwrap()
    })
}

fn any_job() -> impl Strategy<Value = Job> {
    (0u64..=16, 1u32..200, 1u32..1_024).prop_map(|(memory_bytes, blocks, threads)| Job {
        memory_bytes,
        blocks,
        threads,
    })
}

proptest! {
    #[test]
    fn speed_rises_with_sms(program in any_program()) {
        prop_assert_eq!(program.speed(SMS), 1.0);
        prop_assert_eq!(program.speed(0), 0.0);
        for sms in 1..SMS {
            prop_assert!(program.speed(sms) <= program.speed(sms + 1) + 1e-12);
        }
        prop_assert!(program.speed(program.fewest_for(0.75)) >= 0.75);
    }

    #[test]
    fn splits_are_legal_and_between_worst_and_best(
        programs in proptest::collection::vec(any_program(), 1..4)
    ) {
        let all: Vec<&Program> = programs.iter().collect();
        let value = |split: Split| throughput(&all, &split.of(&all, SMS).unwrap());
        let even = Split::Even.of(&all, SMS).unwrap();
        for split in Split::ALL {
            let sms = split.of(&all, SMS).unwrap();
            prop_assert!(sms.iter().all(|own| *own >= 1) && sms.iter().sum::<u32>() <= SMS);
            // Smart Even and Packed may leave SMs free, which the search does not.
            prop_assert!(value(split) <= value(Split::Best) + 1e-9, "{:?}", split);
            if sms.iter().sum::<u32>() == SMS {
                prop_assert!(value(split) >= value(Split::Worst) - 1e-9, "{:?}", split);
            }
        }
        let rounds = Split::Rounds.of(&all, SMS).unwrap();
        for (program, (own, even)) in all.iter().zip(rounds.iter().zip(&even)) {
            prop_assert!(program.rounds(*own) <= program.rounds(*even));
        }
    }

    #[test]
    fn the_cheapest_choice_agrees_with_the_thresholds(
        speed in 0.51f64..0.99, remaining in 0.0f64..100.0, executed in 0.0f64..100.0,
        migration in 0.1f64..50.0, waited in 0.0f64..20.0,
    ) {
        let pair = Pair { a_alone: 400.0, b_alone: 400.0, requested: 100.0, speed };
        let block = Block { remaining, executed, migration };
        let limits = Thresholds::new(speed);
        let cost = |take| pair.cost(take, &block);
        let cheaper = |first, second, below: bool| {
            (cost(first) - cost(second)).abs() < 1e-9 || (cost(first) < cost(second)) == below
        };
        prop_assert!(cheaper(Take::Wait, Take::Migrate, remaining < limits.wait_migrate * migration));
        prop_assert!(cheaper(
            Take::Terminate, Take::Migrate, executed < limits.terminate_migrate * migration
        ));
        prop_assert!(cheaper(
            Take::Wait, Take::Terminate, remaining < limits.wait_terminate * executed
        ));
        let known = Known {
            remaining: Some(remaining), executed, has_written: true, migration, waited,
        };
        let chosen = choose(&known, &limits, 10.0);
        prop_assert!(chosen != Take::Terminate, "the block has written");
        prop_assert!(waited < 10.0 || chosen == Take::Migrate, "beyond the time-out");
    }

    #[test]
    fn formulas_equal_the_recursion_and_sharing_pays(
        blocks in 1u32..300, processes in 1u32..9, resident_max in 1u32..9,
        input in 0.0f64..1.0, round in 1.0f64..50.0, part in 0.0f64..=1.0,
        output in 0.0f64..50.0, switch in 0.0f64..1.0,
    ) {
        let fit = Fit::new(blocks, 14, resident_max).unwrap();
        let stages = Stages { init: 3.0, input, round, stretch: part * round, output, switch };
        let shared = stages.shared(&fit, processes);
        prop_assert!((shared - stages.by_recursion(&fit, processes, false)).abs() < 1e-9 * shared);
        let pipelined = stages.pipelined(&fit, processes);
        let recursion = stages.by_recursion(&fit, processes, true);
        prop_assert!((pipelined - recursion).abs() < 1e-9 * pipelined);
        let native = stages.native(&fit, processes);
        prop_assert!(shared <= native + 1e-9 && pipelined <= native + 1e-9);
        if fit.scenario(processes) == Scenario::ExclusiveSpace {
            let end = makespan(&fit, &vec![0.0; processes as usize], |_| round);
            prop_assert!((end - stages.kernel(&fit)).abs() < 1e-9);
        }
    }

    #[test]
    fn placement_keeps_its_limits(
        jobs in proptest::collection::vec((any_job(), any::<bool>()), 1..40),
        rule in prop_oneof![
            Just(Rule::Exact), Just(Rule::Fewest), Just(Rule::FewestPrinted),
            Just(Rule::RoundRobin(3)), Just(Rule::Alone), Just(Rule::MemoryOnly),
            Just(Rule::Pack), Just(Rule::Spread),
        ],
        closed in any::<bool>(),
    ) {
        let size = GpuSize { sms: 4, blocks: 8, warps: 64, memory_bytes: 16 };
        let mut fleet = Fleet::new(&[size, size]);
        fleet.close(1, closed);
        let mut placed = Vec::new();
        for (job, releases) in jobs {
            if releases && !placed.is_empty() {
                fleet.release(&placed.remove(0));
            }
            let before = format!("{fleet:?}");
            match fleet.place(rule, job).unwrap() {
                Some(new) => {
                    prop_assert!(!closed || new.gpu == 0, "a closed GPU takes no job");
                    placed.push(new);
                }
                None => prop_assert_eq!(before, format!("{fleet:?}")),
            }
            for gpu in 0..2 {
                let (blocks, warps) = fleet.fullest_sm(gpu);
                prop_assert!(blocks <= size.blocks && warps <= size.warps);
                let beyond = fleet.memory(gpu).1;
                prop_assert!(!beyond || matches!(rule, Rule::RoundRobin(_)));
            }
            if rule == Rule::FewestPrinted {
                prop_assert!(placed.is_empty(), "it never takes an idle GPU");
            }
        }
        placed.iter().for_each(|one| fleet.release(one));
        prop_assert_eq!(fleet.warps(), vec![0, 0]);
        prop_assert_eq!([fleet.memory(0), fleet.memory(1)], [(0, false); 2]);
    }
}

#[test]
fn jobs_that_can_never_run_are_refused() {
    let size = GpuSize {
        sms: 4,
        blocks: 8,
        warps: 64,
        memory_bytes: 16,
    };
    let job = Job {
        memory_bytes: 17,
        blocks: 1,
        threads: 32,
    };
    let place = |job, rule| Fleet::new(&[size]).place(rule, job);
    let rules = [Rule::Exact, Rule::Fewest, Rule::Alone, Rule::MemoryOnly];
    for rule in rules {
        assert_eq!(place(job, rule), Err(PlaceError::TooLarge(17)));
        let empty = Job { blocks: 0, ..job };
        assert_eq!(place(empty, rule), Err(PlaceError::NoBlocks));
        let huge = Job {
            memory_bytes: 1,
            threads: 64 * 32 + 1,
            ..job
        };
        assert_eq!(place(huge, rule), Err(PlaceError::NoBlocks));
    }
    // It is blind to memory, so the job crashes instead.
    assert!(matches!(place(job, Rule::RoundRobin(1)), Ok(Some(_))));
    let larger = Job {
        memory_bytes: 1,
        blocks: 1_000,
        threads: 64,
    };
    assert!(
        matches!(place(larger, Rule::Exact), Ok(Some(_))),
        "a demand is capped"
    );
    assert!(Fit::new(1, 0, 8).is_err() && Fit::new(0, 14, 8).is_err());
}

#[test]
fn pack_fills_a_gpu_and_spread_levels_them() {
    let size = |memory_bytes| GpuSize {
        sms: 4,
        blocks: 8,
        warps: 64,
        memory_bytes,
    };
    let job = Job {
        memory_bytes: 4,
        blocks: 1,
        threads: 32,
    };
    let places = |rule| {
        let mut fleet = Fleet::new(&[size(8), size(16)]);
        let mut place = || fleet.place(rule, job).unwrap().map(|placed| placed.gpu);
        [(); 7].map(|()| place())
    };
    let (a, b) = (Some(0), Some(1));
    assert_eq!(places(Rule::Pack), [a, a, b, b, b, b, None]);
    assert_eq!(places(Rule::Spread), [b, a, b, a, b, b, None]);
    let names: Vec<&str> = RULES.iter().map(|row| row.name).collect();
    for name in &names {
        assert_eq!(
            rule_by_name(name).unwrap().name,
            *name,
            "a name is there once"
        );
    }
}

#[test]
fn job_put_on_a_closed_gpu_counts_there_until_its_release() {
    let size = GpuSize {
        sms: 4,
        blocks: 8,
        warps: 64,
        memory_bytes: 8,
    };
    let job = Job {
        memory_bytes: 6,
        blocks: 1,
        threads: 32,
    };
    let mut fleet = Fleet::new(&[size]);
    fleet.close(0, true);
    let [first, second] = [(); 2].map(|()| fleet.put(0, job));
    assert_eq!((first.gpu, fleet.memory(0)), (0, (12, true)));
    fleet.close(0, false);
    assert_eq!(fleet.place(Rule::Spread, job), Ok(None));
    fleet.release(&first);
    fleet.release(&second);
    assert_eq!((fleet.memory(0), fleet.warps()), ((0, false), vec![0]));
}
