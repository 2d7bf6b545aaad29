//! Where the tests run.

use crate::session::{During, Fail, PATIENCE_NS, Session};
use turnstile_abi::Platform;
use turnstile_abi::{CopyDirection, Dim3};
use turnstile_guest::{Allocation, Bump, Channel, Kernel, Params};

const STAGING_BYTES: u64 = 512 << 10;
const GPU_BYTES: u64 = 2 << 20;

/// A channel, an allocation and staging memory, carved up anew by each test.
pub(crate) struct Bench<'s, 'p, P> {
    pub(crate) session: &'s mut Session<'p, P>,
    pub(crate) channel: Channel<'p, P>,
    pub(crate) memory: Allocation,
    pub(crate) launches: u64,
    gpu: Bump,
    staging: Bump,
}

impl<'s, 'p, P: Platform> Bench<'s, 'p, P> {
    pub(crate) fn new(session: &'s mut Session<'p, P>) -> Result<Self, Fail> {
        let channel = session.channel(64, 1)?;
        let memory = session
            .device
            .allocate(GPU_BYTES)
            .during("Allocating GPU memory")?;
        let staging = session
            .heap
            .take(STAGING_BYTES, 4096)
            .during("Setting up staging")?;
        Ok(Self {
            session,
            channel,
            memory,
            launches: 0,
            gpu: Bump::new(memory.va, memory.bytes),
            staging: Bump::new(staging, STAGING_BYTES),
        })
    }

    /// Gives the memory to the next test.
    pub(crate) fn reset(&mut self) {
        self.gpu.reset();
        self.staging.reset();
    }

    /// Gives all back to the device.
    pub(crate) fn close(self) -> Result<(), Fail> {
        self.session
            .device
            .close_channel(self.channel)
            .during("Closing the channel")?;
        self.session
            .device
            .free(self.memory)
            .during("Freeing GPU memory")
    }

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
