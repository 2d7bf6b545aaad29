//! Modules: loading refuses or succeeds, and a loaded module ends within its budget.
use std::sync::atomic::AtomicBool;

use turnstile_ptx::{
    Control, DeviceMemory, Launch, Limits, MemoryFault, Module, Scratch, Timer, run_block,
};

/// One mapped page of zeroes that drops all writes; nothing else is mapped.
struct Page;

impl Page {
    fn check(va: u64, bytes: u64) -> Result<(), MemoryFault> {
        if va.checked_add(bytes).is_some_and(|end| end <= 4096) {
            Ok(())
        } else {
            Err(MemoryFault::Unmapped)
        }
    }
}

impl DeviceMemory for Page {
    fn load(&self, va: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        out.fill(0);
        Self::check(va, out.len() as u64)
    }
    fn store(&self, va: u64, data: &[u8]) -> Result<(), MemoryFault> {
        Self::check(va, data.len() as u64)
    }
    fn update_u32(&self, va: u64, new: &dyn Fn(u32) -> u32) -> Result<u32, MemoryFault> {
        new(0);
        Self::check(va, 4).map(|()| 0)
    }
    fn update_u64(&self, va: u64, new: &dyn Fn(u64) -> u64) -> Result<u64, MemoryFault> {
        new(0);
        Self::check(va, 8).map(|()| 0)
    }
}

struct NoTime;

impl Timer for NoTime {
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn sleep(&mut self, _ns: u64) {}
}

/// Loads a text, and runs its functions.
pub fn ptx(text: &str) {
    let Ok(module) = Module::load(text, &Limits::default()) else {
        return;
    };
    let abort = AtomicBool::new(false);
    let mut scratch = Scratch::new();
    for (index, entry) in module.entries().enumerate() {
        let params = vec![0; entry.param_bytes as usize];
        let mut launch = Launch::new(&module, index, &params);
        launch.block = [33, 1, 1];
        let control = Control {
            pause: &AtomicBool::new(false),
            abort: &abort,
            budget: 10_000,
        };
        let _ = run_block(&launch, [0; 3], &Page, &mut NoTime, &control, &mut scratch);
    }
}
