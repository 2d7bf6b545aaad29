//! The checks that every GPU passes, in both times and for each way to stop a kernel.

use turnstile_abi::CHUNK_BYTES;
use turnstile_gpu::Suspend;
use turnstile_gpu::conformance::Checked;

use super::*;
use crate::{Kernels, SoftConfig, SoftGpu, VirtualGpu};

fn configs() -> impl Iterator<Item = SoftConfig> {
    let stops = [
        Suspend::Drains,
        Suspend::BetweenCommands,
        Suspend::MidKernel,
    ];
    let pools = [0, 64 * CHUNK_BYTES];
    stops.into_iter().flat_map(move |suspend| {
        pools.map(move |host_pool_bytes| SoftConfig {
            kernels: Kernels::GivenLength,
            memory_bytes: 64 * CHUNK_BYTES,
            host_pool_bytes,
            suspend,
            ..SoftConfig::default()
        })
    })
}

fn check(gpu: &dyn Gpu, pass: &dyn Fn(), silence: Option<&dyn Fn(bool)>) {
    let kernel = &kernel;
    Checked {
        gpu,
        pass,
        kernel,
        silence,
    }
    .run();
}

#[test]
fn the_gpu_in_real_time_conforms() {
    for config in configs() {
        let gpu = SoftGpu::new(config).unwrap();
        let pass = || std::thread::sleep(Duration::from_micros(100));
        // A thread that has ended does not come back by itself.
        let silence = |silent| {
            if silent {
                gpu.break_engine();
            }
        };
        check(&gpu, &pass, Some(&silence));
    }
}

#[test]
fn the_gpu_in_virtual_time_conforms() {
    for config in configs() {
        let gpu = VirtualGpu::new(config);
        check(
            &gpu,
            &|| gpu.advance_to(gpu.now() + Nanos::from_us(100)),
            None,
        );
    }
}
