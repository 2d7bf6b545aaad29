//! The kernels, on inputs small enough for a slow interpreter, and what they must compute.
//!
//! Floating-point inputs are small integers wherever the result is then exact.

use crate::bench::Bench;
use crate::session::Fail;
use crate::sha256;
use turnstile_abi::Dim3;
use turnstile_abi::Platform;
use turnstile_guest::{Kernel, Params};

/// Module texts that the guest needs among its files.
pub const FILES: &[&str] = &[
    "vecadd.ptx",
    "saxpy.ptx",
    "matmul.ptx",
    "histogram.ptx",
    "nbody.ptx",
    "reduce.ptx",
    "sha256.ptx",
    "spin.ptx",
];

macro_rules! tests {
    ($($name:ident, $doc:literal, $kernel:expr;)*) => {
        /// What [`crate::Workload::Verify`] tests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Test { $(#[doc = $doc] $name,)* }

        impl Test {
            /// All of them, in the order of their bits.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// File and function of the kernel that it runs, if it runs one.
            pub(crate) const fn kernel(self) -> Option<(&'static str, &'static str)> {
                match self { $(Self::$name => $kernel,)* }
            }
        }
    };
}

tests! {
    VecAdd, "Sum of two vectors.", Some(("vecadd.ptx", "vecadd"));
    Saxpy, "Scaled sum, grid-stride.", Some(("saxpy.ptx", "saxpy"));
    MatMul, "Product of two matrices, tiles in shared memory.", Some(("matmul.ptx", "matmul"));
    Histogram, "Shared and global atomics.", Some(("histogram.ptx", "histogram"));
    NBody, "A step of n bodies, reciprocal square roots.", Some(("nbody.ptx", "nbody_step"));
    Reduce, "Warp shuffles.", Some(("reduce.ptx", "reduce_sum"));
    Sha256, "Digests, constant and local memory.", Some(("sha256.ptx", "sha256"));
    Spin, "The clock and sleeping.", Some(("spin.ptx", "spin"));
    Churn, "A loop without memory.", Some(("spin.ptx", "churn"));
    Copies, "Copies to the GPU and back, of odd lengths.", None;
    GpuCopy, "A copy within the GPU.", None;
    Fill, "A fill within its bounds.", None;
    ApertureRead, "What a copy brought shows in the aperture.", None;
    ApertureWrite, "What is written through the aperture is copied back.", None;
    Wait, "A wait holds the channel until the word is there.", None;
    CrossWait, "One channel waits for another's fence.", None;
    Allocations, "An allocation is zeroed, and freed memory is refused.", None;
}

impl Test {
    /// Its bit in [`crate::Report::passed`].
    pub const fn bit(self) -> u64 {
        1 << self as u64
    }

    /// The bits of all tests.
    pub const fn all_bits() -> u64 {
        (1 << Self::ALL.len()) - 1
    }
}

fn float(value: u32) -> u32 {
    (value as f32).to_bits()
}

/// Runs a test's kernel; returns whether the results were right.
pub(crate) fn run<P: Platform>(
    test: Test,
    bench: &mut Bench<'_, '_, P>,
    kernel: Kernel,
) -> Result<bool, Fail> {
    match test {
        Test::VecAdd => vecadd(bench, kernel),
        Test::Saxpy => saxpy(bench, kernel),
        Test::MatMul => matmul(bench, kernel),
        Test::Histogram => histogram(bench, kernel),
        Test::NBody => nbody(bench, kernel),
        Test::Reduce => reduce(bench, kernel),
        Test::Sha256 => digests(bench, kernel),
        Test::Spin => spin(bench, kernel),
        Test::Churn => churn(bench, kernel),
        _ => Err(Fail::text("The test has no kernel")),
    }
}

fn vecadd<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const N: u32 = 1000;
    let a = bench.upload(N, float)?;
    let b = bench.upload(N, |i| float(2 * i))?;
    let c = bench.zeroes(N + 1)?;
    let params = Params::new().u64(a).u64(b).u64(c).u32(N);
    bench.launch(kernel, Dim3::line(4), Dim3::line(256), 0, &params)?;
    bench.matches(c, N + 1, |i, word| {
        word == if i < N { float(3 * i) } else { 0 }
    })
}

fn saxpy<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const N: u32 = 2000;
    let x = bench.upload(N, float)?;
    let y = bench.upload(N, |_| float(1))?;
    let params = Params::new().f32(3.0).u64(x).u64(y).u32(N);
    bench.launch(kernel, Dim3::line(3), Dim3::line(128), 0, &params)?;
    bench.matches(y, N, |i, word| word == float(3 * i + 1))
}

fn matmul<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    // No multiple of the tile, so that its edges are tested.
    const N: u32 = 40;
    let left = |row: u32, k: u32| (row + 3 * k) % 7;
    let right = |k: u32, col: u32| (5 * k + col) % 5;
    let a = bench.upload(N * N, |i| float(left(i / N, i % N)))?;
    let b = bench.upload(N * N, |i| float(right(i / N, i % N)))?;
    let c = bench.zeroes(N * N)?;
    let (grid, block) = (Dim3 { x: 3, y: 3, z: 1 }, Dim3 { x: 16, y: 16, z: 1 });
    let params = Params::new().u64(a).u64(b).u64(c).u32(N);
    bench.launch(kernel, grid, block, 0, &params)?;
    bench.matches(c, N * N, |i, word| {
        let sum = (0..N).map(|k| left(i / N, k) * right(k, i % N)).sum();
        word == float(sum)
    })
}

fn histogram<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const N: u32 = 4096;
    let byte = |i: u32| ((i * i) >> 3) as u8;
    let data = bench.upload(N / 4, |i| {
        u32::from_le_bytes([0, 1, 2, 3].map(|j| byte(4 * i + j)))
    })?;
    let bins = bench.zeroes(256)?;
    let params = Params::new().u64(data).u64(bins).u32(N);
    bench.launch(kernel, Dim3::line(2), Dim3::line(128), 1024, &params)?;
    let mut expected = [0; 256];
    for i in 0..N {
        expected[usize::from(byte(i))] += 1;
    }
    bench.matches(bins, 256, |i, word| word == expected[i as usize])
}

/// 1 / sqrt(x) by Newton's iteration, good to the last bits of an f64: there is no libm here.
fn rsqrt(x: f64) -> f64 {
    let mut y = f64::from_bits(0x5fe6_eb50_c7b5_37a9 - (x.to_bits() >> 1));
    for _ in 0..5 {
        y *= 1.5 - 0.5 * x * y * y;
    }
    y
}

fn nbody<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const N: u32 = 96;
    const DT: f32 = 0.125;
    const EPS2: f32 = 0.5;
    // (x, y, z, mass); velocities begin as (1, 2, 3, 0).
    let at = |i: u32| [i % 10, i % 7, i % 5, 1 + i % 3];
    let pos = bench.upload(4 * N, |i| float(at(i / 4)[i as usize % 4]))?;
    let vel = bench.upload(4 * N, |i| float((i + 1) % 4))?;
    let next = bench.zeroes(4 * N)?;
    let params = Params::new().u64(pos).u64(next).u64(vel).u32(N);
    let params = params.f32(DT).f32(EPS2);
    bench.launch(kernel, Dim3::line(2), Dim3::line(64), 0, &params)?;
    let expected = |i: u32| {
        let here = at(i).map(f64::from);
        let mut pull = [0.0; 3];
        for k in 0..N {
            let there = at(k).map(f64::from);
            let way = [0, 1, 2].map(|axis| there[axis] - here[axis]);
            let square: f64 = way.iter().map(|d| d * d).sum();
            let r = rsqrt(square + f64::from(EPS2));
            for (sum, d) in pull.iter_mut().zip(way) {
                *sum += d * there[3] * r * r * r;
            }
        }
        [0, 1, 2].map(|axis: usize| {
            here[axis] + (axis as f64 + 1.0 + pull[axis] * f64::from(DT)) * f64::from(DT)
        })
    };
    let gpa = bench.download(next, 4 * N)?;
    let found = |i: u32, axis: u64| {
        let bits = bench
            .platform()
            .read_u32(gpa + 16 * u64::from(i) + 4 * axis);
        f64::from(f32::from_bits(bits))
    };
    Ok((0..N).all(|i| {
        let near = |axis: usize, value: f64| {
            let off = found(i, axis as u64) - value;
            // Wrong in a term, it would be off by more than this; rounding is far below.
            off < 1e-3 && off > -1e-3
        };
        let [x, y, z] = expected(i);
        near(0, x) && near(1, y) && near(2, z) && found(i, 3) == f64::from(at(i)[3])
    }))
}

fn reduce<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const N: u32 = 5000;
    let value = |i: u32| i.wrapping_mul(2_654_435_761);
    let data = bench.upload(N, value)?;
    let out = bench.zeroes(1)?;
    let params = Params::new().u64(data).u64(out).u32(N);
    bench.launch(kernel, Dim3::line(3), Dim3::line(160), 0, &params)?;
    let sum = (0..N).fold(0u32, |sum, i| sum.wrapping_add(value(i)));
    bench.matches(out, 1, |_, word| word == sum)
}

fn digests<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const COUNT: u32 = 40;
    // Two blocks of 64 bytes with the padding.
    const BYTES: u32 = 72;
    let byte = |i: u32| (i.wrapping_mul(167) ^ i >> 5) as u8;
    let messages = bench.upload(COUNT * BYTES / 4, |i| {
        u32::from_le_bytes([0, 1, 2, 3].map(|j| byte(4 * i + j)))
    })?;
    let out = bench.zeroes(8 * COUNT)?;
    let params = Params::new().u64(messages).u32(BYTES).u64(out).u32(COUNT);
    bench.launch(kernel, Dim3::line(2), Dim3::line(32), 0, &params)?;
    let gpa = bench.download(out, 8 * COUNT)?;
    Ok((0..COUNT).all(|i| {
        let digest = sha256::digest(BYTES, |p| byte(i * BYTES + p));
        (0..8).all(|j| {
            let at = gpa + 4 * u64::from(8 * i + j);
            bench.platform().read_u32(at) == digest[j as usize].swap_bytes()
        })
    }))
}

fn spin<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const NS: u64 = 500_000;
    let out = bench.zeroes(4)?;
    bench.finish()?;
    let before = bench.channel.reached_at_ns();
    let params = Params::new().u64(NS).u64(out).u32(2).u32(0xfeed_0001);
    bench.launch(kernel, Dim3::line(1), Dim3::line(32), 0, &params)?;
    bench.finish()?;
    let long_enough = bench.channel.reached_at_ns().saturating_sub(before) >= NS;
    let right = bench.matches(out, 4, |i, word| {
        word == if i == 2 { 0xfeed_0001 } else { 0 }
    })?;
    Ok(right && long_enough)
}

fn churn<P: Platform>(bench: &mut Bench<'_, '_, P>, kernel: Kernel) -> Result<bool, Fail> {
    const TURNS: u32 = 1000;
    let out = bench.zeroes(2)?;
    let params = Params::new().u32(TURNS).u64(out).u32(1).u32(0x1234_5678);
    bench.launch(kernel, Dim3::line(2), Dim3::line(32), 0, &params)?;
    let mut x = 0x1234_5678u32 | 1;
    for _ in 0..TURNS {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    bench.matches(out, 2, |i, word| word == if i == 1 { x } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocal_square_roots_are_close() {
        for x in [0.5, 1.0, 2.0, 3.0, 100.0, 1e10] {
            let square = rsqrt(x) * rsqrt(x) * x;
            assert!((square - 1.0).abs() < 1e-12, "{x}: {square}");
        }
    }

    #[test]
    fn files_are_those_of_the_tests() {
        for (file, _) in Test::ALL.iter().filter_map(|test| test.kernel()) {
            assert!(FILES.contains(&file), "{file}");
        }
        assert_eq!(Test::all_bits().count_ones() as usize, Test::ALL.len());
    }
}
