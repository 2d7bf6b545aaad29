//! What a build without a part answers: `cargo test -p turnstile-cli --no-default-features`.
#![cfg(not(any(
    feature = "dashboard",
    feature = "nvidia",
    feature = "postgres",
    feature = "tls",
    feature = "vfio"
)))]

use std::process::Command;

#[test]
fn every_absent_part_is_refused_with_its_feature() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vmm.sock");
    let socket = socket.to_str().unwrap();
    let serve = |set: &[&'static str]| {
        let words = set.iter().flat_map(|set| ["--set", set]);
        ["serve", "--socket", socket]
            .into_iter()
            .chain(words)
            .collect()
    };
    let tls = [
        "api.listen=127.0.0.1:0",
        "api.tls.certificate=c",
        "api.tls.key=k",
        "api.tls.client_ca=a",
    ];
    let lines: [(Vec<&str>, &str, &str); 7] = [
        (vec!["run", "--", "true"], "turnstile run", "nvidia"),
        (vec!["bench", "share"], "turnstile bench", "nvidia"),
        (vec!["ui", "--port", "1"], "turnstile ui", "dashboard"),
        (serve(&["gpu.kind=nvidia"]), "gpu.kind", "nvidia"),
        (serve(&["gpu.kind=vfio-fake"]), "gpu.kind", "vfio"),
        (
            serve(&["ledger.postgres=postgresql://h/d"]),
            "ledger.postgres",
            "postgres",
        ),
        (serve(&tls), "api.listen", "tls"),
    ];
    for (line, what, feature) in lines {
        let command = Command::new(env!("CARGO_BIN_EXE_turnstile"))
            .args(&line)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&command.stderr);
        let wanted = format!(
            "{what}: this turnstile was built without `{feature}`; add `--features {feature}` to the build"
        );
        assert!(
            !command.status.success() && text.contains(&wanted),
            "{line:?}: {text}"
        );
    }
}
