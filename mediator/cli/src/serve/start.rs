//! From a configuration to a daemon over its GPUs.

use anyhow::Context;
use turnstile_accounting::Nanos;
use turnstile_accounting::record::GpuIdentity;
use turnstile_api::{DebtFile, StateFile};
use turnstile_daemon::config::{Config, Meter};
use turnstile_daemon::{AccountsConfig, Card, Daemon, DaemonConfig, HostConfig, MeterKind};
use turnstile_policies::place::rule_by_name;
use turnstile_policies::{DEFAULT_POLICY, Tuning, Weight};

use crate::chosen::Chosen;
use crate::{gpus, ledger};

/// Tenants and policy of a GPU.
fn host(config: &Config) -> anyhow::Result<HostConfig> {
    let scheduling = &config.scheduling;
    Ok(HostConfig {
        policy: config.policy().to_owned(),
        tuning: Tuning {
            patience_ns: Nanos::from_us(scheduling.patience_us),
            ..Tuning::default()
        },
        weight: Weight::new(scheduling.default_weight)?,
        gpu_memory_bytes: config.memory.vm_mib << 20,
        channels: scheduling.channels_per_vm,
        tenants_max: scheduling.tenants_max,
        preallocated_memory: config.safety.preallocated_memory,
    })
}

/// The meter of a GPU: one that lacks something has no log of its engines.
pub(crate) const fn meter(config: &Config, lacks: bool) -> Meter {
    if lacks {
        Meter::Adaptive
    } else {
        config.gpu.meter
    }
}

/// The GPU of a configuration, as ledgers and readers name it.
pub(super) fn identity(config: &Config) -> anyhow::Result<GpuIdentity> {
    let (gpu, model) = gpus::identity(config)?;
    let node = ledger::node(&config.ledger);
    Ok(GpuIdentity { node, gpu, model })
}

/// Starts a daemon.
pub(crate) fn start(config: &Config) -> anyhow::Result<Daemon> {
    // First: unreadable settings or a ledger that cannot be written are no reason to touch a GPU.
    // Tenants that connect before the API starts then have their settings.
    let state = config.api.state.clone().map(StateFile::new);
    let debts = state.as_ref().map(|state| DebtFile::beside(state).load());
    let kept = state.map(|state| state.load()).transpose()?;
    let kept = kept.unwrap_or_default();
    let store = ledger::open(&config.ledger)?;
    let card = |config: &Config| -> anyhow::Result<Card> {
        let identity = identity(config)?;
        let Chosen { gpu, mut timing } = gpus::choose(config).with_context(|| {
            let GpuIdentity { gpu, model, .. } = &identity;
            format!("{model} ({gpu}) cannot be had; [[card]] names the GPUs that are shared")
        })?;
        if let Some(ms) = config.scheduling.period_ms {
            timing.period = Nanos::from_ms(ms);
        }
        let mut host = host(config)?;
        let lacks = gpu.report().lacks.is_some();
        // `owed` needs time slices and events; doorbells are held by the rule of other GPUs.
        if lacks && host.policy != "none" {
            host.policy = DEFAULT_POLICY.to_owned();
        }
        let ledger = store.clone();
        Ok(Card {
            ledger: ledger.map(|store| ledger::of_gpu(&config.ledger, store, identity.clone())),
            identity,
            gpu,
            host,
            meter: match meter(config, lacks) {
                Meter::Events => MeterKind::Events,
                Meter::Polled => MeterKind::Polled,
                Meter::Adaptive => MeterKind::Adaptive,
            },
            timing,
        })
    };
    let cards: Vec<Card> = (config.cards().iter())
        .map(card)
        .collect::<anyhow::Result<_>>()?;
    let rule = rule_by_name(&config.scheduling.placement);
    let daemon = DaemonConfig {
        placement: rule.context("scheduling.placement is checked")?.rule,
        queue: config.scheduling.queue,
        debts: debts.unwrap_or_default(),
        accounts: AccountsConfig::from(config),
        ..DaemonConfig::new(config.sockets.vmm.clone())
    };
    Ok(Daemon::over(kept.resumed(daemon), cards)?)
}
