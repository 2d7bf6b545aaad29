//! What is out of range in a configuration, or does not go together.
//!
//! In: the configuration as a whole. Out: a text for each problem, with its key. The bounds are the
//! constants that the daemon and the VMM use. [`super::Layers::finish`] calls it.

use turnstile_abi::{CHANNELS_MAX, CHUNK_BYTES, GPU_MEMORY_BYTES_MAX};
use turnstile_policies::place::{RULES, rule_by_name};
use turnstile_policies::{DEFAULT_POLICY, POLICIES, Weight};

use super::{Config, FrontVm, GpuKind, Meter, account, layers};

/// Longest path of a Unix socket. SOURCE: unix(7), `sun_path`, less its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl Config {
    /// Name of the policy: the configured one, or the one that suits the GPU.
    pub fn policy(&self) -> &str {
        let suits = match self.gpu.kind {
            GpuKind::Nvidia => "owed",
            GpuKind::Soft | GpuKind::Vfio | GpuKind::VfioUser | GpuKind::VfioFake => DEFAULT_POLICY,
        };
        self.scheduling.policy.as_deref().unwrap_or(suits)
    }

    /// What is out of range or does not go together, by key.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        self.ranges(&mut found);
        let mut say = |wrong: bool, key, text: &str| {
            if wrong {
                found.push((key, text.to_owned()));
            }
        };
        let policy = &self.scheduling.policy;
        let known = |name: &String| POLICIES.iter().any(|row| row.name == name);
        let names: Vec<_> = POLICIES.iter().map(|row| row.name).collect();
        let meant = policy
            .as_ref()
            .and_then(|name| layers::nearest(name, names.iter().copied()));
        let meant = meant.map_or_else(String::new, |name| format!("did you mean {name}? "));
        say(
            policy.as_ref().is_some_and(|name| !known(name)),
            "scheduling.policy",
            &format!(
                "there is no such policy; {meant}There are: {}",
                names.join(", ")
            ),
        );
        let rule = rule_by_name(&self.scheduling.placement);
        let rules: Vec<_> = RULES.iter().map(|row| row.name).collect();
        let text = format!("there is no such rule. There are: {}", rules.join(", "));
        say(rule.is_none(), "scheduling.placement", &text);
        let odd = |mib: u64| !(mib << 20).is_multiple_of(CHUNK_BYTES);
        let text = "GPU memory is a multiple of 2 MiB";
        say(odd(self.memory.vm_mib), "memory.vm_mib", text);
        for card in self.cards() {
            for (key, text) in card.of_gpu() {
                say(true, if self.card.is_empty() { key } else { "card" }, &text);
            }
        }
        for text in self.card_problems() {
            say(true, "card", &text);
        }
        say(
            self.ledger.path.is_some() && self.ledger.postgres.is_some(),
            "ledger.postgres",
            "a ledger is a file or a server; leave one of ledger.path and ledger.postgres out",
        );
        let tls = &self.api.tls;
        let files = [&tls.certificate, &tls.key, &tls.client_ca];
        for text in account::problems(&self.account) {
            say(true, "account", &text);
        }
        if let Some(folder) = &self.vfio_user.folder {
            let bytes = |vm: &FrontVm| folder.join(&vm.name).as_os_str().len() + ".sock".len();
            let long = self
                .vfio_user
                .vms
                .iter()
                .any(|vm| bytes(vm) > SOCKET_PATH_BYTES_MAX);
            let text = "the path of a VM's socket has more than 107 bytes; shorten folder or name";
            say(long, "vfio_user.vms", text);
        }
        let names = || self.vfio_user.vms.iter().map(|vm| &vm.name);
        let twice = names().any(|name| names().filter(|other| *other == name).count() > 1);
        say(twice, "vfio_user.vms", "a VM is named twice");
        say(
            self.vfio_user.folder.is_none() && !self.vfio_user.vms.is_empty(),
            "vfio_user.folder",
            "the VMs of vfio_user.vms need a folder for their sockets",
        );
        say(
            self.api.listen.is_some() && files.iter().any(|file| file.is_none()),
            "api.listen",
            "the network is served over mutual TLS alone: api.tls.certificate, api.tls.key and api.tls.client_ca are needed",
        );
        say(
            (self.metrics.listen).is_some_and(|address| !address.ip().is_loopback()),
            "metrics.listen",
            "not a loopback address; a scraper elsewhere uses api.listen",
        );
        found
    }

    /// What is wrong about a GPU, by key.
    fn of_gpu(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut say = |wrong: bool, key, text: &str| {
            if wrong {
                found.push((key, text.to_owned()));
            }
        };
        let (vm, card) = (self.memory.vm_mib, self.gpu.soft.memory_mib);
        say(
            self.gpu.kind == GpuKind::Soft && vm > card,
            "memory.vm_mib",
            &format!("a VM of {vm} MiB does not fit on a GPU of {card} MiB (gpu.soft.memory_mib)"),
        );
        let fits = match self.policy() {
            "none" => true,
            name if POLICIES.iter().all(|row| row.name != name) => true,
            policy => (policy == "owed") == (self.gpu.kind == GpuKind::Nvidia),
        };
        let text = "an NVIDIA GPU takes owed or none, other GPUs all but owed";
        say(!fits, "scheduling.policy", text);
        say(
            self.gpu.kind == GpuKind::Nvidia && self.gpu.meter != Meter::Events,
            "gpu.meter",
            "an NVIDIA GPU is accounted by its events",
        );
        say(
            matches!(self.gpu.kind, GpuKind::Vfio | GpuKind::VfioUser) && self.gpu.device.is_none(),
            "gpu.device",
            "which device? Its PCI address for vfio, its server's socket for vfio-user",
        );
        let (soft, most) = (self.gpu.soft.memory_mib, GPU_MEMORY_BYTES_MAX >> 20);
        say(
            !(2..=most).contains(&soft),
            "gpu.soft.memory_mib",
            &format!("{soft} is not within 2 and {most}"),
        );
        found
    }

    fn ranges(&self, found: &mut Vec<(&'static str, String)>) {
        let mut within = |key, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                found.push((key, format!("{value} is not within {least} and {most}")));
            }
        };
        let (scheduling, soft) = (&self.scheduling, &self.gpu.soft);
        if let Some(ms) = scheduling.period_ms {
            within("scheduling.period_ms", ms, 1, 1_000);
        }
        within("scheduling.patience_us", scheduling.patience_us, 0, 100_000);
        let weight = scheduling.default_weight.into();
        within("scheduling.default_weight", weight, 1, Weight::MAX.into());
        // CAST: usize is 64 bits here.
        let tenants = scheduling.tenants_max as u64;
        within("scheduling.tenants_max", tenants, 1, 4_096);
        within("scheduling.queue", scheduling.queue as u64, 0, 1_024);
        let channels = scheduling.channels_per_vm.into();
        within(
            "scheduling.channels_per_vm",
            channels,
            1,
            CHANNELS_MAX.into(),
        );
        let memory_max = GPU_MEMORY_BYTES_MAX >> 20;
        within("gpu.soft.link_mb_s", soft.link_mb_s, 1, 1_000_000);
        let memory = &self.memory;
        within("memory.vm_mib", memory.vm_mib, 2, memory_max);
        within("memory.host_pool_mib", memory.host_pool_mib, 0, memory_max);
        within("memory.card_mib", memory.card_mib, 0, memory_max);
        within("ledger.window_ms", self.ledger.window_ms, 100, 3_600_000);
        within("ledger.keep_days", self.ledger.keep_days, 0, 36_500);
    }
}
