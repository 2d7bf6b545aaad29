//! The stream of the devices' health, as the kubelet reads it.

use std::time::Duration;

use tonic::{Code, Streaming};
use turnstile_dra::health::WATCHES_MAX;
use turnstile_dra::proto::{DeviceHealth, HealthStatus, WatchResponse};

use super::node::{NODE, Node, PATIENCE, until};

type Watch = Streaming<WatchResponse>;

/// The next report; none at the end of the stream.
async fn next(watch: &mut Watch) -> Option<Vec<DeviceHealth>> {
    let read = tokio::time::timeout(PATIENCE, watch.message()).await;
    let report = read.expect("a report in time").unwrap()?;
    Some(report.devices)
}

/// Reads reports until the second device has this health, and returns the report. `cause` is
/// repeated, as a GPU that is broken is taken back after a second.
async fn until_second(
    node: &Node,
    watch: &mut Watch,
    health: HealthStatus,
    cause: impl Fn(),
) -> Vec<DeviceHealth> {
    until(&format!("{health:?}"), async || {
        cause();
        // The driver polls the daemon at once.
        node.register().await;
        let report = next(watch).await.expect("a stream that goes on");
        (report[1].health() == health).then_some(report)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn device_is_unhealthy_while_its_gpu_is_silent_or_closed() {
    let mut node = Node::start().await;
    let mut watch = node.watch().await.unwrap();
    let report = next(&mut watch).await.unwrap();
    let names = report.iter().map(|one| one.device.clone().unwrap());
    let names: Vec<_> = names
        .map(|device| (device.pool_name, device.device_name))
        .collect();
    let expected = ["software-0", "software-1"].map(|name| (NODE.to_owned(), name.to_owned()));
    assert_eq!(names, expected);
    assert!(
        report
            .iter()
            .all(|one| { one.health() == HealthStatus::Healthy && one.message.is_empty() })
    );
    // 2026 in Unix time; a time in another unit is far from it.
    assert!((1_767_000_000..10_000_000_000).contains(&report[0].last_updated_time));
    let timeout = Duration::from_secs(report[0].health_check_timeout_seconds as u64);
    assert_eq!(timeout, Duration::from_secs(30));

    let gpu = node.gpus[1].clone();
    let broken = || gpu.break_engine();
    let report = until_second(&node, &mut watch, HealthStatus::Unhealthy, broken).await;
    assert_eq!(report[0].health(), HealthStatus::Healthy);
    assert!(
        report[1].message.starts_with("It does not answer: "),
        "{report:?}"
    );
    // The daemon takes the GPU back by itself.
    let report = until_second(&node, &mut watch, HealthStatus::Healthy, || ()).await;
    assert_eq!(report[1].message, "");

    node.put("/v1/gpus/software-1/cordon").await;
    let report = until_second(&node, &mut watch, HealthStatus::Unhealthy, || ()).await;
    assert_eq!(report[0].health(), HealthStatus::Healthy);
    assert!(report[1].message.contains("uncordon"), "{report:?}");
    node.delete("/v1/gpus/software-1/cordon").await;
    until_second(&node, &mut watch, HealthStatus::Healthy, || ()).await;

    node.stop_daemon();
    let report = until_second(&node, &mut watch, HealthStatus::Unknown, || ()).await;
    assert_eq!(report[0].health(), HealthStatus::Unknown);
    assert!(!report[0].message.is_empty());
    node.restart_daemon();
    until_second(&node, &mut watch, HealthStatus::Healthy, || ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_bounded_and_end_with_the_driver() {
    let mut node = Node::start().await;
    let mut watches = Vec::new();
    for _ in 0..WATCHES_MAX {
        let mut watch = node.watch().await.unwrap();
        assert_eq!(next(&mut watch).await.unwrap().len(), 2);
        watches.push(watch);
    }
    let refused = node.watch().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("4 clients watch"), "{refused}");
    // A client that has gone leaves its place to another one.
    drop(watches.pop());
    let watch = until("a place", async || node.watch().await.ok()).await;
    watches.push(watch);
    node.restart_driver().await;
    for mut watch in watches {
        while next(&mut watch).await.is_some() {}
    }
    let mut watch = node.watch().await.unwrap();
    assert_eq!(next(&mut watch).await.unwrap().len(), 2);
}
