//! What a tenant has on the GPU besides channels: its memory and its modules.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use turnstile_abi::{ErrorCode, Launch, PARAM_BYTES_MAX};
use turnstile_accounting::TenantId;

use super::kernel;
use super::work::Kernel;
use crate::address_space::AddressSpace;
use crate::config::{Kernels, SoftConfig};
use crate::rank;
use turnstile_gpu::{GuestMemory, Refusal, within_limit};
use turnstile_host::ranked::{Ranked, RankedGuard};
use turnstile_ptx::{self as ptx, Limits};

/// A module, and what it occupies.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    text_bytes: usize,
    /// What the interpreter runs.
    pub(crate) ptx: ptx::Module,
    /// Address of its variables, or zero if it has none.
    pub(crate) base: u64,
}

/// Modules by handle.
#[derive(Debug, Default)]
struct Modules {
    loaded: BTreeMap<u32, Arc<LoadedModule>>,
    text_bytes: usize,
    next: u32,
}

/// A tenant's context. Work in flight keeps it alive, so its memory is returned when the last
/// engine has finished with it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) tenant: TenantId,
    pub(crate) guest: Arc<GuestMemory>,
    pub(crate) space: AddressSpace,
    config: SoftConfig,
    /// Never held while a text is read or a kernel runs.
    modules: Ranked<Modules>,
    launches: AtomicU64,
    /// Of its channels, by kind.
    faults: Mutex<BTreeMap<ErrorCode, u64>>,
}

impl Context {
    /// A channel ended with this.
    pub(crate) fn count_fault(&self, code: ErrorCode) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        *faults.entry(code).or_default() += 1;
    }

    /// What channels ended with so far.
    pub(crate) fn faults(&self) -> BTreeMap<ErrorCode, u64> {
        let faults = self.faults.lock();
        faults.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn new(
        tenant: TenantId,
        guest: Arc<GuestMemory>,
        space: AddressSpace,
        config: SoftConfig,
    ) -> Self {
        Self {
            tenant,
            guest,
            space,
            config,
            modules: Ranked::new(rank::MODULES, Modules::default()),
            faults: Mutex::default(),
            launches: AtomicU64::new(0),
        }
    }

    fn modules(&self) -> RankedGuard<'_, Modules> {
        self.modules.lock()
    }

    /// Loads a module; returns its handle and the number of its functions. Fails if the tenant
    /// would hold more than `max_bytes` with the module's variables.
    pub(crate) fn load_module(
        &self,
        text: &str,
        max_bytes: Option<u64>,
    ) -> Result<(u32, u32), Refusal> {
        let text_bytes = text.len();
        self.room_for(&self.modules(), text_bytes)?;
        let limits = Limits {
            text_bytes: self.config.module_text_bytes_max,
            shared_bytes: self.config.shared_bytes_max,
            param_bytes: PARAM_BYTES_MAX,
            ..Limits::default()
        };
        let mut ptx = ptx::Module::load(text, &limits).map_err(|error| Refusal {
            code: ErrorCode::ModuleRefused,
            detail: error.to_string(),
        })?;
        // CAST: the interpreter bounds the number of entries.
        let functions = ptx.entries().count() as u32;
        let base = self.place_variables(&mut ptx, max_bytes)?;
        let mut modules = self.modules();
        if let Err(code) = self.room_for(&modules, text_bytes) {
            drop(modules);
            self.give_back(base);
            return Err(code.into());
        }
        let handle = modules.next;
        // After 2^32 loads the next handle may still be in use.
        modules.next = handle.wrapping_add(1);
        if modules.loaded.contains_key(&handle) {
            drop(modules);
            self.give_back(base);
            return Err(ErrorCode::TooManyModules.into());
        }
        modules.text_bytes += text_bytes;
        let module = LoadedModule {
            text_bytes,
            ptx,
            base,
        };
        modules.loaded.insert(handle, Arc::new(module));
        Ok((handle, functions))
    }

    /// Allocates memory for a module's variables and fills it; zero if there are none.
    fn place_variables(
        &self,
        module: &mut ptx::Module,
        max_bytes: Option<u64>,
    ) -> Result<u64, Refusal> {
        if module.global_bytes() == 0 {
            return Ok(0);
        }
        within_limit(self.space.held_bytes(), module.global_bytes(), max_bytes)?;
        let va = self.space.allocate(module.global_bytes())?.va;
        // Not kept: it is not counted where it is now.
        if let Err(code) = self.space.write_first(va, &module.take_image(va)) {
            self.give_back(va);
            return Err(code.into());
        }
        Ok(va)
    }

    /// Frees a module's variables, if it has some.
    fn give_back(&self, base: u64) {
        if base != 0 {
            // The guest cannot free it (see `is_module_memory`), so that it is still there.
            let _ = self.space.free(base);
        }
    }

    fn room_for(&self, modules: &Modules, text_bytes: usize) -> Result<(), ErrorCode> {
        if modules.loaded.len() >= self.config.modules_max {
            return Err(ErrorCode::TooManyModules);
        }
        if modules.text_bytes + text_bytes > self.config.module_text_bytes_max {
            return Err(ErrorCode::ModuleTooLarge);
        }
        Ok(())
    }

    /// Unloads a module that no fetched command uses.
    pub(crate) fn unload_module(&self, handle: u32) -> Result<(), ErrorCode> {
        let mut modules = self.modules();
        let module = modules.loaded.get(&handle).ok_or(ErrorCode::NoSuchModule)?;
        if Arc::strong_count(module) > 1 {
            return Err(ErrorCode::ModuleInUse);
        }
        if let Some(module) = modules.loaded.remove(&handle) {
            modules.text_bytes -= module.text_bytes;
            drop(modules);
            self.give_back(module.base);
        }
        Ok(())
    }

    /// Whether a module's variables begin at this address.
    pub(crate) fn is_module_memory(&self, va: u64) -> bool {
        let modules = self.modules();
        va != 0 && modules.loaded.values().any(|module| module.base == va)
    }

    /// Number and parameter bytes of a function.
    pub(crate) fn find_function(&self, handle: u32, name: &str) -> Result<(u32, u32), ErrorCode> {
        let modules = self.modules();
        let module = modules.loaded.get(&handle);
        let module = module.ok_or(ErrorCode::NoSuchModule)?;
        let (index, entry) = module.ptx.entry(name).ok_or(ErrorCode::NoSuchFunction)?;
        // CAST: the interpreter bounds the number of entries.
        Ok((index as u32, entry.param_bytes))
    }

    /// Looks a launch up and checks what its decoder could not know. `params` are its parameters.
    pub(crate) fn resolve(&self, launch: Launch, params: Box<[u8]>) -> Result<Kernel, ErrorCode> {
        let mut kernel = Kernel {
            launch,
            params,
            id: self.launches.fetch_add(1, Ordering::Relaxed),
            module: None,
            paused: Mutex::default(),
        };
        if self.config.kernels == Kernels::Interpreted {
            let module = self.modules().loaded.get(&launch.module).cloned();
            kernel.module = Some(module.ok_or(ErrorCode::NoSuchModule)?);
            kernel::check(&kernel)?;
        }
        Ok(kernel)
    }
}
