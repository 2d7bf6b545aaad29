//! Programs of Adriaens' tables 3.2 and 6.1 (A3.2), and what the experiments with SMs share.

use turnstile_policies::model::sm::{Kernel, Program, SmError};
use turnstile_policies::model::split::Split;

use crate::result::Failure;

/// SMs of the paper's GPU.
pub const SMS: u32 = 30;

/// A row of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name.
    pub name: &'static str,
    /// Weighted means: blocks, threads of a block, resident blocks.
    pub merged: [u32; 3],
    /// Kernels: percent of the time, blocks, resident blocks.
    pub kernels: &'static [(f64, u32, u32)],
    /// Printed: most SMs for 75 % of the speed alone, over all partners.
    pub sms_for_75: u32,
}

const fn row(
    name: &'static str,
    merged: [u32; 3],
    kernels: &'static [(f64, u32, u32)],
    sms_for_75: u32,
) -> Row {
    Row {
        name,
        merged,
        kernels,
        sms_for_75,
    }
}

/// SOURCE: tables 3.2, 6.1 and 7.3. RSA has 4 resident blocks: 3 is a floor, as its 4 blocks are on
/// 30 SMs, and Packed gives it one SM.
pub const ROWS: [Row; 12] = [
    row("AES Decrypt", [4097, 256, 5], &[(100.0, 4097, 5)], 23),
    row("AES Encrypt", [4097, 256, 3], &[(100.0, 4097, 3)], 23),
    row(
        "DVC",
        [112, 216, 2],
        &[
            (19.2, 96, 2),
            (19.1, 240, 4),
            (16.6, 176, 4),
            (12.8, 5, 1),
            (7.2, 3, 1),
            (5.0, 10, 1),
            (4.3, 2, 5),
            (3.5, 120, 4),
            (3.2, 256, 4),
            (2.0, 60, 2),
            (2.0, 1, 1),
            (1.9, 100, 3),
            (1.8, 50, 2),
            (1.5, 30, 1),
        ],
        22,
    ),
    row(
        "Fractals",
        [512, 64, 8],
        &[(99.8, 512, 8), (0.2, 336, 4)],
        23,
    ),
    row(
        "Image Denoising",
        [110_592, 64, 8],
        &[(100.0, 110_592, 8)],
        23,
    ),
    row("JPEG Decode", [13_824, 64, 8], &[(100.0, 13_824, 8)], 23),
    row(
        "JPEG Encode",
        [73_694, 64, 8],
        &[(62.9, 110_592, 8), (37.1, 13_824, 7)],
        23,
    ),
    row("RSA", [4, 32, 4], &[(100.0, 4, 4)], 23),
    row(
        "Radix Sort",
        [357, 250, 4],
        &[(51.9, 256, 3), (43.6, 512, 4), (3.0, 8, 1), (1.5, 1, 1)],
        22,
    ),
    row("Ray Tracing", [2048, 128, 8], &[(100.0, 2048, 8)], 23),
    row(
        "SAD",
        [4354, 66, 8],
        &[(90.0, 4800, 8), (7.9, 300, 8), (2.1, 300, 8)],
        22,
    ),
    row("SHA1", [65, 64, 3], &[(100.0, 65, 3)], 22),
];

/// The programs on a GPU of `sms`.
///
/// # Errors
/// If there is no SM.
pub fn programs(sms: u32) -> Result<Vec<Program>, Failure> {
    let program = |row: &Row| {
        let kernel = |(time, blocks, resident): &(f64, u32, u32)| Kernel {
            time: *time,
            blocks: *blocks,
            resident: *resident,
        };
        let kernels: Vec<Kernel> = row.kernels.iter().map(kernel).collect();
        Program::new(&kernels, row.merged, sms)
    };
    ROWS.iter()
        .map(program)
        .collect::<Result<_, _>>()
        .map_err(failed)
}

/// The program of this name.
///
/// # Panics
/// If there is none.
pub fn place(name: &str) -> usize {
    let place = ROWS.iter().position(|row| row.name == name);
    place.unwrap_or_else(|| panic!("no program is called {name}"))
}

/// All combinations of `count` programs of `of`, with repetition, in order.
pub fn combinations(of: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let with_last = |rest: Vec<usize>| {
        let from = rest.last().copied().unwrap_or(0);
        (from..of).map(move |next| [&rest[..], &[next]].concat())
    };
    combinations(of, count - 1)
        .into_iter()
        .flat_map(with_last)
        .collect()
}

/// The throughput of each combination, split like this.
///
/// # Errors
/// If there are fewer SMs than programs.
pub fn throughputs(programs: &[Program], count: usize, split: Split) -> Result<Vec<f64>, Failure> {
    let one = |places: Vec<usize>| {
        let chosen: Vec<&Program> = places.iter().map(|place| &programs[*place]).collect();
        let sms = split.of(&chosen, chosen[0].sms())?;
        Ok(turnstile_policies::model::sm::throughput(&chosen, &sms))
    };
    let all = combinations(programs.len(), count).into_iter().map(one);
    all.collect::<Result<_, SmError>>().map_err(failed)
}

/// The geometric mean.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|value| libm::log(*value)).sum();
    libm::exp(logs / values.len().max(1) as f64)
}

/// The value that `percent` of the values exceed.
pub fn exceeded_by(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted[last * (100 - percent) / 100]
}

/// A refused input, as the failure of an experiment.
pub fn failed(error: SmError) -> Failure {
    Failure(error.to_string())
}
