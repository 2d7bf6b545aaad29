//! `turnstile bench adversary` as a user runs it.

use std::process::Command;

use serde_json::Value;

/// Seconds of each run.
const SECONDS: &str = "2";

fn lines(args: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_turnstile"))
        .args(["bench", "adversary", "-o", "json", "--seconds", SECONDS])
        .args(args)
        .output()
        .unwrap();
    // The exit status follows the verdicts, which a loaded machine may change; shares it does not.
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    let lines = json["lines"].as_array().unwrap().clone();
    let attacks = args.iter().position(|word| *word == "--attack");
    let attacks = attacks.and_then(|at| args.get(at + 1)).unwrap_or(&"");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines.len(), attacks.split(',').count(), "{messages}");
    lines
}

fn number(line: &Value, name: &str) -> f64 {
    line[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name}: {line:#}"))
}

/// Shares are of engine time by the GPU's log, so that a loaded machine does not change them much.
/// It does with attackers that return: on a loaded machine their kernels take longer. The policies'
/// simulation has those.
#[test]
fn attackers_do_not_take_the_victims_share() {
    let attacks = ["saturate", "copies-8m"];
    let args = ["--victims", "depth-4", "--attack", &attacks.join(",")];
    let lines = lines(&args);
    let names: Vec<_> = lines.iter().map(|line| line["attack"].clone()).collect();
    assert_eq!(names, attacks);
    for (line, least) in lines.iter().zip([45.0, 99.0]) {
        assert!(number(line, "share_percent") >= least, "{line:#}");
        let charged = number(line, "charged_percent") - number(line, "share_percent");
        assert!(charged.abs() <= 5.0, "{line:#}");
    }
    // Copies are to leave the compute engine to the victim, except where it has nothing queued.
    assert!(
        number(&lines[1], "of_its_time_percent") >= 70.0,
        "{:#}",
        lines[1]
    );

    let args = [
        "--victims",
        "depth-4",
        "--attack",
        "saturate",
        "--policy",
        "none",
    ];
    let lines = self::lines(&[&args[..3], &["long-10"], &args[4..]].concat());
    let share = number(&lines[0], "share_percent");
    assert!(
        share < 25.0,
        "without a policy the bench shows what is lost: {share} %"
    );
}

/// The front end has one budget for all tenants of an account.
#[test]
fn eight_flooding_tenants_of_one_account_have_what_one_has() {
    let attacks = ["nops", "nops-8"];
    let args = ["--victims", "depth-4", "--attack", &attacks.join(",")];
    let lines = lines(&args);
    let submitted = |line: &Value| -> u64 {
        let text = line["note"].as_str().unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let [one, eight] = [&lines[0], &lines[1]].map(submitted);
    // Submitted, not executed: each has a ring of commands that are not.
    assert!(one > 50_000, "{lines:#?}");
    assert!(eight < one * 3 / 2 + 8 * 4_096, "{one} and {eight}");
    assert!(number(&lines[1], "share_percent") >= 99.0, "{lines:#?}");
}
