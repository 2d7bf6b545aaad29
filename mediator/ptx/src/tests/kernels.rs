//! The kernels of `images/kernels` against plain Rust.

use super::*;
use proptest::prelude::*;

pub(super) const ALL: [(&str, &str); 8] = [
    (
        "vecadd",
        include_str!("../../../../images/kernels/vecadd.ptx"),
    ),
    (
        "saxpy",
        include_str!("../../../../images/kernels/saxpy.ptx"),
    ),
    (
        "matmul",
        include_str!("../../../../images/kernels/matmul.ptx"),
    ),
    (
        "reduce",
        include_str!("../../../../images/kernels/reduce.ptx"),
    ),
    (
        "histogram",
        include_str!("../../../../images/kernels/histogram.ptx"),
    ),
    (
        "nbody",
        include_str!("../../../../images/kernels/nbody.ptx"),
    ),
    (
        "sha256",
        include_str!("../../../../images/kernels/sha256.ptx"),
    ),
    ("spin", include_str!("../../../../images/kernels/spin.ptx")),
];

fn module(name: &str) -> Module {
    let (_, text) = ALL.iter().find(|(n, _)| *n == name).unwrap();
    load(text)
}

/// Numbers that look random and are the same each time.
fn noise(seed: u32) -> impl Iterator<Item = u32> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::repeat_with(move || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    })
}

fn unit_floats(seed: u32, count: usize) -> Vec<f32> {
    let scale = |v: u32| v as f32 / u32::MAX as f32 - 0.5;
    noise(seed).take(count).map(scale).collect()
}

#[test]
fn entries_are_described() {
    let module = module("matmul");
    let (index, entry) = module.entry("matmul").unwrap();
    assert_eq!(index, 0);
    assert_eq!(entry.param_bytes, 28);
    assert_eq!(
        entry.params.iter().map(|p| p.offset).collect::<Vec<_>>(),
        [0, 8, 16, 24]
    );
    assert_eq!(entry.static_shared_bytes, 2048);
    assert_eq!(entry.registers, 12 + 63 + 29 + 13);
    let module = self::module("sha256");
    assert_eq!(module.entry("sha256").unwrap().1.local_bytes, 256);
    assert_eq!(module.global_bytes(), 256);
    assert_eq!(module.symbol("K").unwrap().size, 256);
    assert_eq!(module.global_image(0)[..4], 0x428a_2f98u32.to_le_bytes());
    let names: Vec<_> = self::module("spin")
        .entries()
        .map(|e| e.name.clone())
        .collect();
    assert_eq!(names, ["spin", "churn"]);
}

#[test]
fn vecadd_of_odd_sizes() {
    let module = module("vecadd");
    for n in [1usize, 31, 32, 33, 255, 257, 1000] {
        let memory = Flat::new(3 << 16);
        let (a, b) = (unit_floats(1, n), unit_floats(2, n));
        memory.write_words(0, a.iter().map(|v| v.to_bits()));
        memory.write_words(1 << 16, b.iter().map(|v| v.to_bits()));
        let params = Params::default()
            .u64(BASE)
            .u64(BASE + (1 << 16))
            .u64(BASE + (2 << 16));
        let params = params.u32(n as u32).0;
        let mut launch = Launch::new(&module, 0, &params);
        launch.block = [128, 1, 1];
        launch.grid = [n.div_ceil(128) as u32, 1, 1];
        run_grid(&launch, &memory).unwrap();
        let want: Vec<_> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(memory.floats(2 << 16, n), want);
        assert_eq!(
            memory.words((2 << 16) + 4 * n, 8),
            [0; 8],
            "nothing past the end"
        );
    }
}

#[test]
fn saxpy_strides_over_the_grid() {
    let module = module("saxpy");
    let n = 1003;
    let memory = Flat::new(1 << 17);
    let (x, y) = (unit_floats(3, n), unit_floats(4, n));
    memory.write_words(0, x.iter().map(|v| v.to_bits()));
    memory.write_words(1 << 16, y.iter().map(|v| v.to_bits()));
    let params = Params::default()
        .f32(1.75)
        .u64(BASE)
        .u64(BASE + (1 << 16))
        .u32(n as u32)
        .0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [96, 1, 1];
    launch.grid = [2, 1, 1];
    run_grid(&launch, &memory).unwrap();
    let want: Vec<_> = x.iter().zip(&y).map(|(x, y)| x.mul_add(1.75, *y)).collect();
    assert_eq!(memory.floats(1 << 16, n), want);
}

#[test]
fn matmul_is_exact_for_sizes_off_the_tile() {
    let module = module("matmul");
    for n in [1usize, 15, 16, 17, 40] {
        let memory = Flat::new(3 << 16);
        let (a, b) = (unit_floats(5, n * n), unit_floats(6, n * n));
        memory.write_words(0, a.iter().map(|v| v.to_bits()));
        memory.write_words(1 << 16, b.iter().map(|v| v.to_bits()));
        let params = Params::default()
            .u64(BASE)
            .u64(BASE + (1 << 16))
            .u64(BASE + (2 << 16));
        let params = params.u32(n as u32).0;
        let mut launch = Launch::new(&module, 0, &params);
        launch.block = [16, 16, 1];
        launch.grid = [n.div_ceil(16) as u32, n.div_ceil(16) as u32, 1];
        let outcome = run_grid(&launch, &memory).unwrap();
        let want: Vec<f32> = (0..n * n)
            .map(|i| {
                (0..n).fold(0.0, |s: f32, k| {
                    a[i / n * n + k].mul_add(b[k * n + i % n], s)
                })
            })
            .collect();
        assert_eq!(memory.floats(2 << 16, n * n), want);
        let tiles = n.div_ceil(16) as u64;
        assert_eq!(outcome.barriers, tiles * tiles * tiles * 2 * 8);
    }
}

#[test]
fn reduce_sums_whatever_the_block() {
    // Whole warps: the kernel shuffles with all 32 lanes.
    let module = module("reduce");
    for (n, block, grid) in [
        (1, 32, 1),
        (1000, 256, 3),
        (777, 96, 2),
        (5000, 1024, 1),
        (40, 64, 1),
    ] {
        let memory = Flat::new(1 << 16);
        let data: Vec<u32> = noise(7).take(n).collect();
        memory.write_words(64, data.iter().copied());
        let params = Params::default().u64(BASE + 64).u64(BASE).u32(n as u32).0;
        let mut launch = Launch::new(&module, 0, &params);
        launch.block = [block, 1, 1];
        launch.grid = [grid, 1, 1];
        run_grid(&launch, &memory).unwrap();
        let want = data.iter().fold(0u32, |s, v| s.wrapping_add(*v));
        assert_eq!(memory.words(0, 1)[0], want, "n {n}, block {block}");
    }
}

#[test]
fn histogram_counts_in_dynamic_shared_memory() {
    let module = module("histogram");
    for (n, block) in [(1usize, 64), (5000, 100), (4097, 512)] {
        let memory = Flat::new(1 << 16);
        let data: Vec<u8> = noise(8).take(n).map(|v| (v >> 8) as u8 & 0x7f).collect();
        memory.write(4096, &data);
        let params = Params::default().u64(BASE + 4096).u64(BASE).u32(n as u32).0;
        let mut launch = Launch::new(&module, 0, &params);
        launch.block = [block, 1, 1];
        launch.grid = [3, 1, 1];
        launch.dynamic_shared_bytes = 1024;
        run_grid(&launch, &memory).unwrap();
        let mut want = vec![0u32; 256];
        data.iter().for_each(|b| want[*b as usize] += 1);
        assert_eq!(memory.words(0, 256), want);
    }
}

#[test]
fn nbody_moves_as_in_double_precision() {
    let module = module("nbody");
    let n = 100;
    let memory = Flat::new(1 << 16);
    let pos: Vec<f32> = unit_floats(9, 4 * n)
        .iter()
        .map(|v| v.abs() + 0.1)
        .collect();
    let vel = unit_floats(10, 4 * n);
    memory.write_words(0, pos.iter().map(|v| v.to_bits()));
    memory.write_words(1 << 15, vel.iter().map(|v| v.to_bits()));
    let params = Params::default()
        .u64(BASE)
        .u64(BASE + (1 << 14))
        .u64(BASE + (1 << 15));
    let params = params.u32(n as u32).f32(0.01).f32(0.05).0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [64, 1, 1];
    launch.grid = [2, 1, 1];
    run_grid(&launch, &memory).unwrap();
    let (next, new_vel) = (memory.floats(1 << 14, 4 * n), memory.floats(1 << 15, 4 * n));
    for i in 0..n {
        let mut a = [0f64; 3];
        for k in 0..n {
            let d: [f64; 3] =
                std::array::from_fn(|c| f64::from(pos[4 * k + c]) - f64::from(pos[4 * i + c]));
            let r = (d.iter().map(|d| d * d).sum::<f64>() + 0.05).sqrt().recip();
            (0..3).for_each(|c| a[c] += d[c] * f64::from(pos[4 * k + 3]) * r * r * r);
        }
        for c in 0..3 {
            let v = f64::from(vel[4 * i + c]) + a[c] * 0.01;
            let p = f64::from(pos[4 * i + c]) + v * 0.01;
            assert!((f64::from(new_vel[4 * i + c]) - v).abs() < 1e-4);
            assert!((f64::from(next[4 * i + c]) - p).abs() < 1e-5);
        }
        assert_eq!(next[4 * i + 3], pos[4 * i + 3]);
    }
}

/// Digests of messages of `len` bytes, byte `j` of message `i` being
/// `(i * 7 + j * 13 + 1) % 256`.
fn digest(messages: usize, len: usize) -> Vec<Vec<u32>> {
    let module = module("sha256");
    let memory = Flat::new(1 << 18);
    for i in 0..messages {
        let message: Vec<u8> = (0..len).map(|j| (i * 7 + j * 13 + 1) as u8).collect();
        memory.write(i * len, &message);
    }
    memory.write(1 << 17, &module.global_image(0));
    let params = Params::default()
        .u64(BASE)
        .u32(len as u32)
        .u64(BASE + (1 << 16));
    let params = params.u32(messages as u32).0;
    let mut launch = Launch::new(&module, 0, &params);
    launch.block = [32, 1, 1];
    launch.grid = [messages.div_ceil(32) as u32, 1, 1];
    launch.module_base = BASE + (1 << 17);
    run_grid(&launch, &memory).unwrap();
    (0..messages)
        .map(|i| memory.words((1 << 16) + 32 * i, 8))
        .collect()
}

fn hex(words: &[u32]) -> String {
    words
        .iter()
        .map(|w| format!("{:08x}", w.swap_bytes()))
        .collect()
}

#[test]
fn sha256_of_known_messages() {
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert!(digest(40, 0).iter().all(|d| hex(d) == empty));
    for (len, first, last) in KNOWN {
        let digests = digest(35, len);
        assert_eq!(hex(&digests[0]), first, "length {len}");
        assert_eq!(hex(&digests[34]), last, "length {len}");
    }
}

#[test]
fn spin_takes_the_time_it_was_given() {
    let module = module("spin");
    let memory = Flat::new(64);
    for (ns, block) in [(0u64, 1), (500, 32), (10_000_000, 256)] {
        let params = Params::default().u64(ns).u64(BASE).u32(3).u32(0xabcd).0;
        let mut launch = Launch::new(&module, 0, &params);
        launch.block = [block, 1, 1];
        let mut timer = Virtual::default();
        let outcome = run_timed(&launch, &memory, &mut timer, 1 << 24).unwrap();
        assert!(timer.now >= ns);
        assert!(timer.now < ns + 20_000 + ns / 100, "{} for {ns}", timer.now);
        assert!(ns < 1000 || outcome.slept_ns > ns / 2);
        assert_eq!(memory.words(12, 1), [0xabcd]);
        memory.write_words(12, [0]);
    }
}

fn churn(turns: u32, token: u32) -> u32 {
    let mut x = token | 1;
    for _ in 0..turns {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    x
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn churn_turns_its_generator(turns in 0u32..200, token: u32, block in 1u32..130) {
        let module = module("spin");
        let memory = Flat::new(64);
        let params = Params::default().u32(turns).u64(BASE).u32(1).u32(token).0;
        let (entry, _) = module.entry("churn").unwrap();
        let mut launch = Launch::new(&module, entry, &params);
        launch.block = [block, 1, 1];
        launch.grid = [2, 1, 1];
        run_grid(&launch, &memory).unwrap();
        prop_assert_eq!(memory.words(4, 1)[0], churn(turns, token));
    }
}

/// Length, digest of message 0, digest of message 34.
const KNOWN: [(usize, &str, &str); 12] = [
    (
        1,
        "4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a",
        "4d4d75d742863ab9656f3d5f76dff8589c3922e95a24ea6812157ffe4aaa3b6b",
    ),
    (
        3,
        "0fb70de64966ca774d94cb32d3940d7de4c1f67e830ee1cd7380ef595ec55a60",
        "45ad1c447e2bb503ce86f5612267f285ab6043595137ccdd0f7cc8298d7a796f",
    ),
    (
        54,
        "da7cae2d0a8073357a915aaf087c4e4cc07cc382147311c75076de06a66c3708",
        "fe7c82cedd05b4225432a11df5c4da9bbecec914a6c77e31311f856dc819f592",
    ),
    (
        55,
        "c7480ee93991327abebc1ee6fb551956911da8571f4bd575e780c211300797f2",
        "196839ff5d62240ccaa967c50c8314c5399f18d820ae7db414354aeb14ce6ed1",
    ),
    (
        56,
        "434d6ca8a1c737a8e00ad1558a8c39a8f95d1d62ab39f1418784482cb304afad",
        "21ff21ad4fa12b4e17dce27bf45dbaa4202d030fc20b93762092f4746f61ee80",
    ),
    (
        63,
        "f36b91d14db586e312898467bf17e5f44ebf53a0b1a3a64fa3de90877ba6c4dd",
        "9245d618e8b1163720be79b66071576c07bd8e8d06c0fa10c5de37a08d7f8509",
    ),
    (
        64,
        "5ef2644039fe7976c6cadafb30e28c37fab8bf9c27cb9a3e36e9c74c97d5ac2d",
        "0d1bd20b117eee89f3560f474ddb99f60d77b73024a8521c8aac63bfc4924169",
    ),
    (
        65,
        "780c36aabd7736d0ba0d0334ed245c9b07d203fcc08430136e97623277506797",
        "22e2169799bb52753716abb40301cfc454d2df82485cb601e31e907b9c1742cc",
    ),
    (
        119,
        "f46c646b9d03c6630fd30e2e38bb7bce1c8cd084380558d43c3d9cd73348c17b",
        "d679110e626362b09195c551d6022240371bce9c3606aeda001cac42610b5646",
    ),
    (
        120,
        "eea83768cf456f3f33133e3b0c000a6554a4a8dc5659ffdfd02f04e7f8080518",
        "a1ea67858223347c04b3a94adbc1d4137371cc1b6f74d4a2c58fcdbb39a803ab",
    ),
    (
        128,
        "1bd9b72c6f0a1dcefbe20088983ea7cba3cb097d601468d690da693af5573090",
        "9aa82619ab0d0ee86a18ccff8b77d31a320d9fc1484df728ef79722dad214dfb",
    ),
    (
        300,
        "7937ccc0d0d68ddc5b1285ddb702971f8beecb043831031e039a7cffb46e4828",
        "3b4604858f32ea937079ad2098daed4126cbd010870bbfe88aa4f5071a31490e",
    ),
];
