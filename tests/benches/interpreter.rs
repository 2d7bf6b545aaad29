//! PTX instructions per second, counted once per lane:
//! `cargo bench -p turnstile-tests --bench interpreter`.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use turnstile_images::KERNELS;
use turnstile_ptx::{
    Control, DeviceMemory, Launch, Limits, MemoryFault, Module, Scratch, Timer, run_block,
};

/// Plain bytes from address zero on.
struct Bytes(RefCell<Vec<u8>>);

impl DeviceMemory for Bytes {
    fn load(&self, va: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let bytes = self.0.borrow();
        out.copy_from_slice(&bytes[va as usize..va as usize + out.len()]);
        Ok(())
    }

    fn store(&self, va: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let mut bytes = self.0.borrow_mut();
        bytes[va as usize..va as usize + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn update_u32(&self, va: u64, new: &dyn Fn(u32) -> u32) -> Result<u32, MemoryFault> {
        let mut word = [0; 4];
        self.load(va, &mut word)?;
        let old = u32::from_le_bytes(word);
        self.store(va, &new(old).to_le_bytes())?;
        Ok(old)
    }

    fn update_u64(&self, va: u64, new: &dyn Fn(u64) -> u64) -> Result<u64, MemoryFault> {
        let mut word = [0; 8];
        self.load(va, &mut word)?;
        let old = u64::from_le_bytes(word);
        self.store(va, &new(old).to_le_bytes())?;
        Ok(old)
    }
}

struct NoTime;

impl Timer for NoTime {
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn sleep(&mut self, _ns: u64) {}
}

fn module(name: &str) -> Module {
    let (_, text) = KERNELS.iter().find(|(kernel, _)| *kernel == name).unwrap();
    Module::load(text, &Limits::default()).unwrap()
}

fn block(c: &mut Criterion) {
    let mut group = c.benchmark_group("interpreter");
    let abort = AtomicBool::new(false);
    let memory = Bytes(RefCell::new(vec![1; 1 << 20]));
    let mut scratch = Scratch::new();
    let params = |words: &[u64]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    // churn(u32 turns, pad, u64 out, u32 slot, u32 token); matmul(a, b, c, n) with n = 64
    let cases = [
        ("spin", "churn", [256u32, 1, 1], params(&[2000, 0, 0])),
        (
            "matmul",
            "matmul",
            [16, 16, 1],
            params(&[0, 1 << 18, 2 << 18, 64]),
        ),
        (
            "sha256",
            "sha256",
            [64, 1, 1],
            params(&[0, 64, 1 << 19, 64]),
        ),
    ];
    for (file, entry, threads, params) in cases {
        let module = module(file);
        let (index, found) = module.entry(entry).unwrap();
        let mut launch = Launch::new(&module, index, &params[..found.param_bytes as usize]);
        launch.block = threads;
        let mut run = || {
            let control = Control {
                pause: &AtomicBool::new(false),
                abort: &abort,
                budget: u64::MAX,
            };
            run_block(
                &launch,
                [0; 3],
                &memory,
                &mut NoTime,
                &control,
                &mut scratch,
            )
            .unwrap()
        };
        group.throughput(Throughput::Elements(run().lane_instructions));
        group.bench_function(entry, |b| b.iter(&mut run));
    }
    group.finish();
}

criterion_group!(benches, block);
criterion_main!(benches);
