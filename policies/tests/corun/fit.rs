//! The model against measurements: the figures by which it was fitted to pairs of programs.
//!
//! SOURCE: simulation `lab corun`, table of the model. Values measured on an H200 are in comments.

use turnstile_corun::rows::programs;
use turnstile_corun::{alone, native};

#[test]
fn pairs_share_the_hardware_as_fitted() {
    for (pair, progress) in [
        (("train", "decode"), [0.75, 0.95]),  // 0.77 + 0.89
        (("train", "small"), [0.81, 0.84]),   // 0.82 + 0.83
        (("train", "copy"), [0.88, 0.95]),    // 0.89 + 0.89
        (("decode", "decode"), [0.98, 0.98]), // 0.97 + 1.04
        (("train", "200us"), [0.79, 0.15]),   // 0.83 + 0.12
        (("50us", "50ms"), [0.03, 0.85]),     // 0.03 + 0.84
        (("train", "memory"), [0.39, 0.58]),
        (("train", "graph"), [0.41, 0.68]),
    ] {
        let outcome = native(&programs((pair, (1, 1))));
        for (got, fitted) in outcome.progress.iter().zip(progress) {
            assert!((got - fitted).abs() < 0.015, "{pair:?} {outcome:?}");
        }
    }
}

#[test]
fn programs_alone_run_as_fitted() {
    // Measured: p99 7.8 ms.
    assert!((alone("infer").p99_ms - 7.4).abs() < 0.1);
    let beside = native(&programs((("train", "infer"), (1, 1))));
    assert!((beside.p99_ms[1] - 8.9).abs() < 0.4, "{beside:?}");
    for (name, worked) in [
        ("50us", 0.85),
        ("2ms", 0.99),
        ("graph", 0.83),
        ("50us-deep", 1.0),
    ] {
        let got = alone(name).worked;
        assert!((got - worked).abs() < 0.02, "{name} {got}");
    }
}
