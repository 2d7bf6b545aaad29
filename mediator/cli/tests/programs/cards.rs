//! Programs on a daemon with two GPUs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;

use turnstile_accounting::TenantId;
use turnstile_accounting::record::GpuIdentity;
use turnstile_daemon::{Card, Daemon, DaemonConfig, HostConfig, MeterKind, Timing};
use turnstile_gpu::Gpu;
use turnstile_soft::{SoftConfig, SoftGpu};

use super::gpu::{FakeGpu, GpuCall};
use super::{Bench, CLIENT, until};

const IDS: [&str; 2] = [
    "GPU-00000000-0000-0000-0000-000000000000",
    "GPU-11111111-1111-1111-1111-111111111111",
];

struct Cards {
    bench: Bench,
    gpus: [Arc<FakeGpu>; 2],
}

/// A daemon over these GPUs, of which some are closed to further tenants.
fn over(socket: &Path, gpus: [Arc<dyn Gpu>; 2], cordoned: &[&str]) -> Daemon {
    let card = |(id, gpu): (&str, Arc<dyn Gpu>)| {
        let policy = match gpu.capabilities().time_slices {
            true => "owed",
            false => turnstile_policies::DEFAULT_POLICY,
        };
        Card {
            identity: GpuIdentity {
                node: "node".into(),
                gpu: id.into(),
                model: "Fake".into(),
            },
            gpu,
            host: HostConfig {
                policy: policy.into(),
                ..HostConfig::default()
            },
            meter: MeterKind::Events,
            timing: Timing::default(),
            ledger: None,
        }
    };
    let config = DaemonConfig {
        cordoned: cordoned.iter().map(|id| (*id).to_owned()).collect(),
        ..DaemonConfig::new(socket)
    };
    let cards = IDS.into_iter().zip(gpus).map(card).collect();
    Daemon::over(config, cards).unwrap()
}

impl Cards {
    fn new() -> Self {
        let mut this = Self {
            bench: Bench::new(),
            gpus: [FakeGpu::new(), FakeGpu::new()],
        };
        this.restart(&[]);
        this
    }

    /// A new daemon over new GPUs, all without any state.
    fn restart(&mut self, cordoned: &[&str]) {
        self.bench.daemon = None;
        self.gpus = [FakeGpu::new(), FakeGpu::new()];
        let gpus = self.gpus.clone().map(|gpu| -> Arc<dyn Gpu> { gpu });
        self.bench.daemon = Some(over(&self.bench.socket(), gpus, cordoned));
    }

    fn daemon(&self) -> &Daemon {
        self.bench.daemon.as_ref().unwrap()
    }

    /// Names and numbers of the tenants of each GPU.
    fn tenants(&self) -> [Vec<(String, TenantId)>; 2] {
        let members = self.daemon().fleet().members();
        let of = |gpu: usize| {
            let tenants = members[gpu].host.snapshot().tenants;
            let named = tenants.into_iter().map(|one| (one.name, one.tenant));
            named.collect()
        };
        [of(0), of(1)]
    }

    fn made(&self) -> [usize; 2] {
        [0, 1].map(|gpu| self.gpus[gpu].made().len())
    }

    /// What a command on these GPUs finds in the vendor's variable.
    fn visible(&self, options: &[&str]) -> String {
        let command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
        let output = self.bench.run(options, &command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn refused(&self, options: &[&str]) -> String {
        let output = self.bench.run(options, &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn end(&self, mut actor: Child) {
        self.bench.go();
        assert_eq!(actor.wait().unwrap().code(), Some(7));
        until("no tenants", || self.tenants().iter().all(Vec::is_empty));
    }
}

#[test]
fn program_that_names_a_gpu_is_a_tenant_of_it_alone() {
    let cards = Cards::new();
    let actor = cards
        .bench
        .actor(&["--name", "train", "--gpu", "1"], CLIENT);
    until("its objects", || cards.made() == [0, 2]);
    let [first, second] = cards.tenants();
    assert!(first.is_empty(), "{first:?}");
    assert_eq!(second[0].0, "train");
    assert!(cards.gpus[0].calls().is_empty());
    // A name is taken on whichever GPU.
    let text = cards.refused(&["--name", "train", "--gpu", "0"]);
    assert!(text.contains("is connected already"), "{text}");
    cards.end(actor);
    assert_eq!(cards.visible(&["--gpu", "1"]), IDS[1]);
    assert_eq!(cards.visible(&["--gpu", IDS[0]]), IDS[0]);
}

#[test]
fn program_on_all_gpus_is_one_tenant_with_an_entity_on_each() {
    let cards = Cards::new();
    let both = IDS.join(",");
    assert_eq!(cards.visible(&["--gpu", "all"]), both);
    assert_eq!(cards.visible(&["--gpu", "0", "--gpu", "1"]), both);
    let options = ["--name", "train", "--gpu", "all", "--weight", "300"];
    let actor = cards.bench.actor(&options, CLIENT);
    until("its objects on both", || cards.made() == [2, 2]);
    let [first, second] = cards.tenants();
    assert_eq!(first, second, "one name and one number");
    let tenant = first[0].1;
    // A client of it belongs to its process on each GPU.
    let other = cards.bench.path("actor");
    let words = [other.to_str().unwrap(), &format!("{CLIENT:x}")];
    let run = cards.bench.run(&["--gpu", "1"], &words).output().unwrap();
    assert_eq!(run.status.code(), Some(7));
    until("the other's end", || cards.tenants()[1].len() == 1);
    assert_eq!(cards.made(), [2, 2]);
    cards.end(actor);
    for gpu in &cards.gpus {
        assert!(gpu.calls().contains(&GpuCall::Left(tenant)));
    }
}

#[test]
fn programs_without_a_gpu_spread_over_both() {
    let cards = Cards::new();
    let place = |client| cards.bench.actor(&[], client);
    let [first, second] = [place(CLIENT), place(CLIENT + 1)];
    until("one on each", || cards.made() == [2, 2]);
    let numbers = cards.tenants().map(|tenants| tenants[0].1);
    assert_eq!(BTreeSet::from(numbers).len(), 2);
    cards.bench.go();
    for mut actor in [first, second] {
        assert_eq!(actor.wait().unwrap().code(), Some(7));
    }
    until("no tenants", || cards.tenants().iter().all(Vec::is_empty));
}

#[test]
fn gpus_that_are_not_there_or_closed_are_refused_with_the_reason() {
    let mut cards = Cards::new();
    let text = cards.refused(&["--gpu", "2"]);
    assert!(
        text.contains("no GPU \"2\"") && text.contains(IDS[1]),
        "{text}"
    );
    let text = cards.refused(&["--gpu", "all", "--movable", "--preload", "/bin/sh"]);
    assert!(text.contains("on 2 GPUs cannot move"), "{text}");
    let text = cards.refused(&["--gpu", "1", "--movable", "--preload", "/bin/sh"]);
    assert!(text.contains("memory.host_pool_mib"), "{text}");
    cards.restart(&[IDS[1]]);
    let text = cards.refused(&["--gpu", "1"]);
    assert!(text.contains("takes no further tenants"), "{text}");
    assert_eq!(cards.visible(&["--gpu", "all"]), IDS[0]);
    for _ in 0..3 {
        assert_eq!(cards.visible(&[]), IDS[0]);
    }
}

#[test]
fn program_is_on_no_gpu_if_one_of_them_refuses_it() {
    let mut cards = Cards::new();
    cards.bench.daemon = None;
    let soft: Arc<dyn Gpu> = Arc::new(SoftGpu::new(SoftConfig::default()).unwrap());
    let gpus = [cards.gpus[0].clone() as Arc<dyn Gpu>, soft];
    cards.bench.daemon = Some(over(&cards.bench.socket(), gpus, &[]));
    let text = cards.refused(&["--name", "train", "--gpu", "all"]);
    assert!(text.contains("need an NVIDIA GPU"), "{text}");
    assert!(cards.tenants().iter().all(Vec::is_empty));
    assert!(matches!(
        cards.gpus[0].calls()[..],
        [GpuCall::Program(..), GpuCall::Left(_)]
    ));
    // Its name and its place are free again.
    assert_eq!(cards.visible(&["--name", "train", "--gpu", "0"]), IDS[0]);
}

#[test]
fn restarted_daemon_has_a_program_where_it_runs() {
    let mut cards = Cards::new();
    let actor = cards.bench.actor(&["--gpu", "1"], CLIENT);
    until("its objects", || cards.made() == [0, 2]);
    // Also where the GPU takes no further tenants.
    cards.restart(&[IDS[1]]);
    until("its objects again", || cards.made() == [0, 2]);
    cards.end(actor);
}
