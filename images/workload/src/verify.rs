//! Every kernel and every command once, compared with the guest's own computation.

use crate::kernels;
use crate::report::Report;
use crate::session::{During, Fail, PATIENCE_NS, Session};
use crate::transfers;
use turnstile_abi::{CopyDirection, Dim3};
use turnstile_guest::{Allocation, Bump, Channel, Kernel, Params, Platform};

const STAGING_BYTES: u64 = 512 << 10;
const GPU_BYTES: u64 = 2 << 20;

/// Where the tests run: a channel, an allocation and staging memory, carved up anew by each test.
pub(crate) struct Bench<'s, 'p, P> {
    pub(crate) session: &'s mut Session<'p, P>,
    pub(crate) channel: Channel<'p, P>,
    pub(crate) memory: Allocation,
    gpu: Bump,
    staging: Bump,
    launches: u64,
}

impl<P: Platform> Bench<'_, '_, P> {
    pub(crate) fn platform(&self) -> &P {
        self.session.platform
    }

    /// GPU memory for `words`.
    pub(crate) fn gpu(&mut self, words: u32) -> Result<u64, Fail> {
        let bytes = u64::from(words) * 4;
        self.gpu.take(bytes, 256).during("Carving up GPU memory")
    }

    /// GPU memory with `words` zeroes.
    pub(crate) fn zeroes(&mut self, words: u32) -> Result<u64, Fail> {
        let va = self.gpu(words)?;
        self.channel
            .fill(va, u64::from(words) * 4, 0)
            .during("Adding a fill")?;
        Ok(va)
    }

    /// Guest memory for `words`.
    pub(crate) fn staging(&mut self, words: u32) -> Result<u64, Fail> {
        let bytes = u64::from(words) * 4;
        self.staging.take(bytes, 64).during("Carving up staging")
    }

    /// GPU memory with `words` words, brought there by a copy.
    pub(crate) fn upload(&mut self, words: u32, word: impl Fn(u32) -> u32) -> Result<u64, Fail> {
        let (from, to) = (self.staging(words)?, self.gpu(words)?);
        for i in 0..words {
            self.platform().write_u32(from + 4 * u64::from(i), word(i));
        }
        self.copy(CopyDirection::GuestToGpu, from, to, words)?;
        Ok(to)
    }

    /// Guest memory with `words` words of the GPU, after all that was added before.
    pub(crate) fn download(&mut self, va: u64, words: u32) -> Result<u64, Fail> {
        let to = self.staging(words)?;
        self.copy(CopyDirection::GpuToGuest, va, to, words)?;
        self.finish()?;
        Ok(to)
    }

    pub(crate) fn copy(
        &mut self,
        direction: CopyDirection,
        from: u64,
        to: u64,
        words: u32,
    ) -> Result<(), Fail> {
        self.channel
            .copy(direction, from, to, u64::from(words) * 4)
            .during("Adding a copy")
    }

    pub(crate) fn launch(
        &mut self,
        kernel: Kernel,
        grid: Dim3,
        block: Dim3,
        shared_bytes: u32,
        params: &Params,
    ) -> Result<(), Fail> {
        self.launches += 1;
        self.channel
            .launch(kernel, grid, block, shared_bytes, params)
            .during("Adding a launch")
    }

    pub(crate) fn finish(&mut self) -> Result<(), Fail> {
        self.channel
            .finish(PATIENCE_NS)
            .during("Waiting for the commands to finish")
    }

    /// Whether the words of GPU memory are as expected.
    pub(crate) fn matches(
        &mut self,
        va: u64,
        words: u32,
        right: impl Fn(u32, u32) -> bool,
    ) -> Result<bool, Fail> {
        let gpa = self.download(va, words)?;
        Ok((0..words).all(|i| right(i, self.platform().read_u32(gpa + 4 * u64::from(i)))))
    }
}

/// Runs all tests `rounds` times, or until the VMM asks for the end.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    rounds: u32,
    report: &mut Report,
) -> Result<(), Fail> {
    let channel = session.channel(64, 1)?;
    let memory = session
        .device
        .allocate(GPU_BYTES)
        .during("Allocating GPU memory")?;
    let staging = session
        .heap
        .take(STAGING_BYTES, 4096)
        .during("Setting up staging")?;
    let mut bench = Bench {
        session,
        channel,
        memory,
        gpu: Bump::new(memory.va, memory.bytes),
        staging: Bump::new(staging, STAGING_BYTES),
        launches: 0,
    };
    let mut round = 0;
    while (rounds == 0 || round < rounds) && !bench.session.stop() {
        for test in kernels::Test::ALL {
            bench.gpu.reset();
            bench.staging.reset();
            let right = match test.kernel() {
                Some((file, name)) => {
                    let module = bench.session.module(file)?;
                    let kernel = bench.session.kernel(module, name)?;
                    let right = kernels::run(*test, &mut bench, kernel)?;
                    bench
                        .session
                        .device
                        .unload_module(module)
                        .during("Unloading a module")?;
                    right
                }
                None => transfers::run(*test, &mut bench)?,
            };
            report.count(right);
            if right {
                report.passed |= test.bit();
            }
            report.launches = bench.launches;
        }
        report.publish(bench.session.platform, &bench.session.boot);
        round += 1;
    }
    let Bench {
        session, channel, ..
    } = bench;
    session
        .device
        .close_channel(channel)
        .during("Closing the channel")?;
    session.device.free(memory).during("Freeing GPU memory")
}
