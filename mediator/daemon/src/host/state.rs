//! What a host keeps under its lock, in parts that own what they change.

use std::collections::BTreeMap;
use std::time::Instant;

use turnstile_accounting::{AccountId, Ledger, Moment, Nanos, TenantId};
use turnstile_gpu::Gpu;
use turnstile_host::process::{self, Identity};
use turnstile_mediation::Mediation;
use turnstile_policies::{Membership, TenantParams};

use super::accounts::Accounts;
use super::departed::Departed;
use super::described::Described;
use super::memory::Memory;
use super::peer::{Kind, Tenant};
use super::recorder::Recorder;
use super::settings::{Brought, NAMES_MAX, Settings, SettingsError};
use super::timings::Timings;
use crate::journal::Journal;
use crate::limits::{Limits, Resource};
use crate::untracked::UntrackedLog;

/// Time after which a tenant that left has no work on the engines: a GPU's kernel limit is below
/// it.
pub(super) const SETTLE_AFTER: Nanos = Nanos::from_ms(60_000);

/// A tenant that has left and is not settled yet.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) tenant: TenantId,
    pub(crate) account: AccountId,
    pub(crate) left: Moment,
}

/// What is kept of the periods that ended.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// The ledger from the engines' own log, where another meter is in use.
    pub(crate) truth: Option<Ledger>,
    /// Usages that a ledger refused.
    pub(crate) errors: u64,
    pub(crate) timings: Timings,
    /// Processes without a tenant that were logged.
    pub(crate) untracked: UntrackedLog,
    /// Writes charges to the disk, if configured.
    pub(crate) recorder: Option<Recorder>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) mediation: Mediation,
    /// Where tenants' memory is, if it moves.
    pub(crate) memory: Option<Memory>,
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    /// What an operator set, by name.
    pub(crate) settings: BTreeMap<String, Settings>,
    pub(crate) described: Described,
    /// Which account each tenant belongs to.
    pub(crate) accounts: Accounts,
    /// Tenants that left, but may still have work on the engines: settled after [`SETTLE_AFTER`].
    pub(crate) leaving: Vec<Leaving>,
    /// Tenants that left lately, as readers see them.
    pub(super) departed: Departed,
    /// Names of VMs that are being admitted.
    pub(crate) starting: BTreeMap<String, TenantId>,
    pub(crate) records: Records,
}

impl State {
    /// Of a GPU without tenants.
    pub(crate) fn new(mediation: Mediation, gpu: &dyn Gpu) -> Self {
        Self {
            mediation,
            memory: Memory::of(gpu),
            tenants: BTreeMap::new(),
            settings: BTreeMap::new(),
            described: Described::default(),
            accounts: Accounts::default(),
            leaving: Vec::new(),
            departed: Departed::default(),
            starting: BTreeMap::new(),
            records: Records::default(),
        }
    }

    /// What was set of a name.
    pub(crate) fn set_of(&self, name: &str) -> Settings {
        self.settings.get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn find(&self, name: &str) -> Option<(TenantId, Brought)> {
        let mut tenants = self.tenants.iter();
        let (tenant, entry) = tenants.find(|(_, entry)| entry.name == name)?;
        Some((*tenant, entry.brought))
    }

    /// Whether a tenant of this name is here, or is being admitted.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.starting.contains_key(name) || self.find(name).is_some()
    }

    /// The tenant within which a process runs, if it is one of a program here.
    pub(crate) fn program_around(&self, pid: u32) -> Option<String> {
        process::nearest(pid, process::parent, |pid| {
            let is_root = |root: Identity| root.pid == pid && root.is_there();
            let mut tenants = self.tenants.values();
            let outer = tenants.find(|tenant| tenant.root().is_some_and(is_root));
            outer.map(|tenant| tenant.name.clone())
        })
    }

    /// VMs that are connected, and their names.
    pub(crate) fn vms(&self) -> Vec<(TenantId, String)> {
        let is_vm = |entry: &Tenant| matches!(entry.kind, Kind::Vm(_));
        let vms = self.tenants.iter().filter(|(_, entry)| is_vm(entry));
        vms.map(|(tenant, entry)| (*tenant, entry.name.clone()))
            .collect()
    }

    /// Whether these could be set of a name, under a policy and on a GPU that may report what
    /// memory a tenant holds.
    pub(crate) fn check_settings(
        &self,
        name: &str,
        settings: Option<&Settings>,
        policy: &str,
        memory_held: bool,
    ) -> Result<(), SettingsError> {
        // Empty ones take a place too.
        let is_new = settings.is_some() && !self.settings.contains_key(name);
        if is_new && self.settings.len() >= NAMES_MAX {
            return Err(SettingsError::TooMany);
        }
        let settings = &settings.cloned().unwrap_or_default();
        settings.check(policy)?;
        let limits = &settings.memory;
        if self.memory.is_none() && (limits.min_bytes > 0 || limits.high_bytes.is_some()) {
            return Err(SettingsError::Immovable);
        }
        let Some((tenant, brought)) = self.find(name) else {
            return Ok(());
        };
        if let Some(memory) = &self.memory {
            let weight = settings.params(brought).weight;
            memory.check(tenant, limits.entitlement(brought, weight))?;
        }
        if limits.max_bytes.is_some() && !memory_held {
            return Err(SettingsError::UnknownHeld);
        }
        Ok(())
    }

    /// Sets these of a name. Precondition: they were checked.
    pub(crate) fn set_settings(
        &mut self,
        name: &str,
        settings: Option<Settings>,
    ) -> Result<(), SettingsError> {
        let wanted = settings.clone().unwrap_or_default();
        if let Some((tenant, brought)) = self.find(name) {
            let TenantParams { weight, cap } = wanted.params(brought);
            if let Some(memory) = &mut self.memory {
                memory.set(tenant, wanted.memory.entitlement(brought, weight))?;
            }
            // The policy has every tenant that the host has.
            let _ = self.mediation.set_weight(tenant, weight);
            let _ = self.mediation.set_cap(tenant, cap);
            let _ = self.mediation.set_target(tenant, wanted.latency_target);
            let _ = self.mediation.set_gang(tenant, wanted.gang);
            self.described.set(tenant, &wanted.metadata);
        }
        match settings {
            Some(settings) => self.settings.insert(name.to_owned(), settings),
            None => self.settings.remove(name),
        };
        Ok(())
    }

    /// A tenant's last window is closed: what it was charged stays with its account.
    pub(crate) fn settle(
        &mut self,
        Leaving {
            tenant, account, ..
        }: Leaving,
    ) {
        let totals = self.mediation.ledger().tenant(tenant);
        self.accounts.settle(account, &totals);
        self.departed.settle(tenant, &totals);
        self.mediation.settle(tenant);
    }

    /// A tenant has connected, and what is set of its name applies to what it brought.
    pub(crate) fn connects(&mut self, journal: &Journal, tenant: TenantId, name: &str) {
        let set = self.set_of(name).metadata;
        self.described.set(tenant, &set);
        journal.vm("vm_connected", name, self.described.of(tenant));
    }

    /// Admits a tenant after the GPU has; settings of its name apply to it.
    pub(crate) fn insert(
        &mut self,
        gpu: &dyn Gpu,
        limits: &Limits,
        tenant: TenantId,
        entry: Tenant,
    ) {
        let (name, brought) = (&entry.name, entry.brought);
        let settings = self.set_of(name);
        let params = settings.params(brought);
        if let Some(memory) = &mut self.memory {
            memory.add(tenant, settings.memory.entitlement(brought, params.weight));
            if matches!(entry.kind, Kind::Program(_)) {
                memory.comes_back(tenant);
            }
        }
        let now = gpu.now();
        let debts = &mut self.accounts.debts;
        debts.owe(&mut self.mediation, &entry.account, name, now);
        let membership = Membership {
            account: entry.account.0,
            name,
        };
        if let Err(error) = self.mediation.add(tenant, membership, params, gpu.now()) {
            log::error!("Policy: {error}");
        }
        // It was added; if not, that was logged.
        let _ = self.mediation.set_target(tenant, settings.latency_target);
        let _ = self.mediation.set_gang(tenant, settings.gang);
        let weight = params.weight.get();
        if limits.permits(Resource::LogLines, &entry.holder, Instant::now()) {
            let account = &entry.account.1;
            log::info!("{tenant} is {name}, account {account}, weight {weight}");
        }
        self.tenants.insert(tenant, entry);
        // A name with a debt is held before its first command.
        let orders = self.mediation.decide(gpu.now());
        self.carry_out(gpu, &orders);
    }
}
