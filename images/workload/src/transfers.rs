//! Commands other than launches, and the aperture.

use crate::bench::Bench;
use crate::kernels::Test;
use crate::session::{During, Fail, PATIENCE_NS};
use turnstile_abi::Platform;
use turnstile_abi::regs::features;
use turnstile_abi::{Command, CopyDirection, ErrorCode};

fn pattern(i: u32) -> u32 {
    i.wrapping_mul(0x9e37_79b9) ^ 0x5555_0000
}

/// Runs a test; returns whether the results were right.
pub(crate) fn run<P: Platform>(test: Test, bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    match test {
        Test::Copies => copies(bench),
        Test::GpuCopy => gpu_copy(bench),
        Test::Fill => fill(bench),
        Test::ApertureRead => aperture_read(bench),
        Test::ApertureWrite => aperture_write(bench),
        Test::Wait => wait(bench),
        Test::CrossWait => cross_wait(bench),
        Test::Allocations => allocations(bench),
        _ => Err(Fail::text("The test has a kernel")),
    }
}

fn copies<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    const N: u32 = 5000;
    let va = bench.upload(N, pattern)?;
    if !bench.matches(va, N, |i, word| word == pattern(i))? {
        return Ok(false);
    }
    // 13 bytes from an odd address to another.
    let to = bench.staging(8)?;
    for i in 0..8 {
        bench.platform().write_u32(to + 4 * i, 0);
    }
    bench
        .channel
        .copy(CopyDirection::GpuToGuest, va + 5, to + 3, 13)
        .during("Adding a copy")?;
    bench.finish()?;
    let mut got = [0; 32];
    bench.platform().read_bytes(to, &mut got);
    Ok((0..32).all(|i| {
        let expected = match i {
            3..16 => {
                let at = i as u32 + 2;
                pattern(at / 4).to_le_bytes()[at as usize % 4]
            }
            _ => 0,
        };
        got[i] == expected
    }))
}

fn gpu_copy<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    const N: u32 = 3000;
    let from = bench.upload(N, pattern)?;
    let to = bench.zeroes(N + 1)?;
    bench.copy(CopyDirection::GpuToGpu, from, to, N)?;
    bench.matches(to, N + 1, |i, word| {
        word == if i < N { pattern(i) } else { 0 }
    })
}

fn fill<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    const N: u32 = 600;
    let va = bench.upload(N, pattern)?;
    bench
        .channel
        .fill(va + 400, 800, 0xabcd_1234)
        .during("Adding a fill")?;
    bench.matches(va, N, |i, word| {
        let filled = (100..300).contains(&i);
        word == if filled { 0xabcd_1234 } else { pattern(i) }
    })
}

/// Offset in the aperture of GPU address `va` of the bench's allocation.
fn aperture<P: Platform>(bench: &Bench<'_, '_, P>, va: u64) -> u64 {
    va - bench.memory.va + bench.memory.aperture_offset
}

/// Whether the device has an aperture; the aperture tests pass without checks if it has none.
fn has_aperture<P: Platform>(bench: &Bench<'_, '_, P>) -> bool {
    bench.session.device.features() & features::APERTURE != 0
}

fn aperture_read<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    const N: u32 = 1024;
    if !has_aperture(bench) {
        return Ok(true);
    }
    let va = bench.upload(N, |i| pattern(!i))?;
    bench.finish()?;
    let at = aperture(bench, va);
    Ok((0..N / 2).all(|i| {
        let expected = u64::from(pattern(!(2 * i + 1))) << 32 | u64::from(pattern(!(2 * i)));
        bench.platform().aperture_read(at + 8 * u64::from(i)) == expected
    }))
}

fn aperture_write<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    const N: u32 = 512;
    if !has_aperture(bench) {
        return Ok(true);
    }
    let va = bench.zeroes(N)?;
    bench.finish()?;
    let at = aperture(bench, va);
    for i in 0..N / 2 {
        let word = u64::from(pattern(2 * i + 1)) << 32 | u64::from(pattern(2 * i));
        bench.platform().aperture_write(at + 8 * u64::from(i), word);
    }
    bench.matches(va, N, |i, word| word == pattern(i))
}

fn wait<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    let word = bench.staging(2)?;
    bench.platform().write_u64(word, 4);
    let wait = Command::Wait {
        gpa: word,
        value: 5,
    };
    bench.channel.submit(&wait).during("Adding a wait")?;
    let fence = bench.channel.fence(true).during("Adding a fence")?;
    bench.channel.ring();
    let since = bench.platform().now_ns();
    while bench.platform().now_ns().saturating_sub(since) < 2_000_000 {
        bench.platform().wait(500_000);
    }
    let held = bench.channel.reached() < fence;
    bench.platform().write_u64(word, 6);
    bench
        .channel
        .wait_fence(fence, PATIENCE_NS)
        .during("Waiting behind a wait")?;
    Ok(held)
}

fn cross_wait<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    if bench.session.device.channels() < 2 {
        return Ok(true);
    }
    let heap = bench.session.heap;
    let mut other = bench.session.channel(16, 2)?;
    let word = bench.staging(4)?;
    bench.platform().write_u64(word, 0);
    // The waiting channel is rung first, so that it would run ahead if nothing held it.
    let wait = Command::Wait {
        gpa: word,
        value: 9,
    };
    bench.channel.submit(&wait).during("Adding a wait")?;
    let va = bench.zeroes(1)?;
    let behind = bench.channel.fence(true).during("Adding a fence")?;
    bench.channel.ring();
    let fence = Command::Fence {
        gpa: word,
        value: 9,
        interrupt: false,
    };
    let early = bench.channel.reached() >= behind;
    other.submit(&fence).during("Adding a fence")?;
    other.finish(PATIENCE_NS).during("Waiting for the other")?;
    bench
        .channel
        .wait_fence(behind, PATIENCE_NS)
        .during("Waiting for a channel that waits")?;
    let right = bench.matches(va, 1, |_, word| word == 0)?;
    bench
        .session
        .device
        .close_channel(other)
        .during("Closing the other channel")?;
    bench.session.heap = heap;
    Ok(right && !early)
}

fn allocations<P: Platform>(bench: &mut Bench<'_, '_, P>) -> Result<bool, Fail> {
    const WORDS: u32 = 1000;
    let device = &bench.session.device;
    let more = device.allocate(1).during("Allocating once more")?;
    let zeroed = bench.matches(more.va, WORDS, |_, word| word == 0)?;
    bench
        .channel
        .fill(more.va, u64::from(WORDS) * 4, u32::MAX)
        .during("Adding a fill")?;
    bench.finish()?;
    let device = &bench.session.device;
    device.free(more).during("Freeing it")?;
    let again = device.free(more).err().and_then(|error| error.code());
    Ok(zeroed && again == Some(ErrorCode::NoSuchAllocation))
}
