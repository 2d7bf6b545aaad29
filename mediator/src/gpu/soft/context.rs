//! What a tenant has on the GPU besides channels: its memory and its modules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnstile_abi::{ErrorCode, Launch};
use turnstile_accounting::TenantId;

use super::address_space::AddressSpace;
use super::config::{Kernels, SoftConfig};
use super::work::Kernel;
use crate::gpu::{GuestMemory, Refusal};

/// A module, and what it occupies.
#[derive(Debug)]
pub(super) struct LoadedModule {
    text_bytes: usize,
}

/// Modules by handle.
#[derive(Debug, Default)]
struct Modules {
    loaded: BTreeMap<u32, Arc<LoadedModule>>,
    text_bytes: usize,
    next: u32,
}

/// A tenant's context. Work in flight keeps it alive: memory is given back when the last engine is done with it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) tenant: TenantId,
    pub(super) guest: Arc<GuestMemory>,
    pub(super) space: AddressSpace,
    config: SoftConfig,
    /// Never held while a text is read or a kernel runs.
    modules: Mutex<Modules>,
}

impl Context {
    pub(super) fn new(
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
            modules: Mutex::default(),
        }
    }

    fn modules(&self) -> MutexGuard<'_, Modules> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a module: its handle and the number of its functions.
    pub(super) fn load_module(&self, text: &str) -> Result<(u32, u32), Refusal> {
        let text_bytes = text.len();
        self.room_for(&self.modules(), text_bytes)?;
        let functions = 1;
        let module = LoadedModule { text_bytes };
        let mut modules = self.modules();
        self.room_for(&modules, text_bytes)?;
        let handle = modules.next;
        modules.next = handle.checked_add(1).ok_or(ErrorCode::TooManyModules)?;
        modules.text_bytes += text_bytes;
        modules.loaded.insert(handle, Arc::new(module));
        Ok((handle, functions))
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
    pub(super) fn unload_module(&self, handle: u32) -> Result<(), ErrorCode> {
        let mut modules = self.modules();
        let module = modules.loaded.get(&handle).ok_or(ErrorCode::NoSuchModule)?;
        if Arc::strong_count(module) > 1 {
            return Err(ErrorCode::ModuleInUse);
        }
        if let Some(module) = modules.loaded.remove(&handle) {
            modules.text_bytes -= module.text_bytes;
        }
        Ok(())
    }

    /// Whether this address is where a module's variables lie.
    pub(super) fn is_module_memory(&self, _va: u64) -> bool {
        false
    }

    /// Number and parameter bytes of a function.
    pub(super) fn find_function(&self, handle: u32, _name: &str) -> Result<(u32, u32), ErrorCode> {
        let modules = self.modules();
        modules.loaded.get(&handle).ok_or(ErrorCode::NoSuchModule)?;
        Ok((0, 8))
    }

    /// Looks a launch up and checks what its decoder could not know. `params` are its parameters.
    pub(super) fn resolve(&self, launch: Launch, params: Box<[u8]>) -> Result<Kernel, ErrorCode> {
        let kernel = |module| Kernel {
            launch,
            params,
            module,
        };
        if self.config.kernels == Kernels::GivenLength {
            return Ok(kernel(None));
        }
        let modules = self.modules();
        let module = modules.loaded.get(&launch.module);
        let module = module.ok_or(ErrorCode::NoSuchModule)?;
        Ok(kernel(Some(module.clone())))
    }
}
