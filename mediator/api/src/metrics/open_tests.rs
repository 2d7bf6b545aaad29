//! OpenMetrics, read strictly: each rule of the text format that the daemon's metrics touch.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::tests::{all, host};
use super::*;

/// Name and sorted labels; bounds of buckets as numbers.
type Series = (String, Vec<(String, String)>);

/// A line of a sample: its series and its value.
fn sample(line: &str) -> (Series, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let mut rest = labels;
    let mut found = Vec::new();
    while rest != "}" {
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (key, quoted) = rest.split_once("=\"").unwrap();
        let mut escaped = false;
        let end = quoted.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (value, behind) = quoted.split_at(end.unwrap());
        let value = match key {
            "le" => format!("{}", value.replace("+Inf", "inf").parse::<f64>().unwrap()),
            _ => value.to_owned(),
        };
        found.push((key.to_owned(), value));
        rest = &behind[1..];
    }
    found.sort();
    let keys: BTreeSet<&String> = found.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), found.len(), "a label is there twice: {line}");
    ((name.to_owned(), found), value.parse().unwrap())
}

/// What is known of a family from the lines above its samples.
#[derive(Default)]
struct Head {
    name: String,
    kind: String,
    unit: Option<String>,
}

impl Head {
    /// Takes a line of metadata; the first one of another name begins a family.
    fn take(&mut self, line: &str, known: &mut BTreeSet<String>) {
        let mut words = line.splitn(3, ' ');
        let (what, name) = (words.next().unwrap(), words.next().unwrap());
        if name != self.name {
            assert!(known.insert(name.to_owned()), "{name} is there twice");
            *self = Self {
                name: name.to_owned(),
                ..Self::default()
            };
        }
        let text = words.next().unwrap().to_owned();
        match what {
            "HELP" => assert!(!text.contains('"'), "{line}"),
            "TYPE" => self.kind = text,
            "UNIT" => {
                assert!(name.ends_with(&format!("_{text}")), "{line}");
                self.unit = Some(text);
            }
            _ => panic!("{line}"),
        }
    }

    fn check(&self, name: &str, value: f64) {
        let suffix = name.strip_prefix(&self.name);
        let suffixes: &[&str] = match self.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            kind => panic!("{name}: {kind}"),
        };
        assert!(
            suffix.is_some_and(|suffix| suffixes.contains(&suffix)),
            "{name}"
        );
        assert!(value.is_finite(), "{name}");
        match self.kind.as_str() {
            "counter" => assert!(value >= 0.0, "{name}"),
            "info" => assert!(value == 1.0 && self.unit.is_none(), "{name}"),
            _ => {}
        }
    }
}

/// The types of families, and all samples; panics where a rule of the format is broken.
fn read(text: &str) -> (BTreeMap<String, Option<String>>, BTreeMap<Series, f64>) {
    let body = text.strip_suffix("# EOF\n").expect("it ends with EOF");
    assert!(!body.contains("# EOF") && body.ends_with('\n'));
    let (mut head, mut known) = (Head::default(), BTreeSet::new());
    let (mut units, mut samples) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines() {
        if let Some(metadata) = line.strip_prefix("# ") {
            head.take(metadata, &mut known);
            continue;
        }
        let (series, value) = sample(line);
        head.check(&series.0, value);
        units.insert(head.name.clone(), head.unit.clone());
        assert!(samples.insert(series, value).is_none(), "twice: {line}");
    }
    (units, samples)
}

fn written() -> String {
    open_text(all(&host())).unwrap()
}

#[test]
fn open_metrics_have_the_samples_of_the_other_format() {
    let families = all(&host());
    let plain = text(&families).unwrap();
    let (units, samples) = read(&open_text(families).unwrap());
    let plain = plain.lines().filter(|line| !line.starts_with('#'));
    let plain: BTreeMap<Series, f64> = plain.map(sample).collect();
    assert!(plain.len() > 100, "{}", plain.len());
    let other = plain
        .iter()
        .find(|(series, value)| samples.get(series) != Some(value));
    assert_eq!((samples.len(), other), (plain.len(), None));
    let unit = |name: &str| units[name].as_deref();
    assert_eq!(unit("turnstile_vm_gpu_seconds"), Some("seconds"));
    assert_eq!(unit("turnstile_gpu_memory_bytes"), Some("bytes"));
    assert_eq!(unit("turnstile_vm_cap_ratio"), Some("ratio"));
    assert_eq!(unit("turnstile_vm_slices"), None);
    assert_eq!(unit("turnstile_vm"), None, "information has no unit");
}

#[test]
fn buckets_grow_to_the_count() {
    let (_, samples) = read(&written());
    let name = "turnstile_vm_schedule_latency_seconds";
    let of_tenant = |(series, _): &(&Series, &f64)| {
        let labels = &series.1;
        series.0 == format!("{name}_bucket") && labels.contains(&("vm".into(), "vm-1".into()))
    };
    let bound = |series: &Series| {
        let mut labels = series.1.iter();
        let le = labels.find(|(key, _)| key == "le").unwrap();
        le.1.parse::<f64>().unwrap()
    };
    let buckets = samples.iter().filter(of_tenant);
    let mut buckets: Vec<(f64, f64)> = buckets.map(|(s, count)| (bound(s), *count)).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1.0)));
    assert_eq!(buckets[1], (5e-6, 0.0), "7 us are more than 5 us");
    assert_eq!(buckets[2], (1e-5, 1.0));
}

#[test]
#[should_panic(expected = "is there twice")]
fn the_reader_refuses_a_family_in_two_parts() {
    read("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\na{x=\"1\"} 1\n# EOF\n");
}

#[test]
fn a_counter_without_its_suffix_is_refused() {
    let counter = single("turnstile_x", "Help.", MetricType::COUNTER, &[], 1.0);
    assert!(open_text(vec![counter]).is_err());
}

/// The reference parser, of Prometheus' client for Python.
#[test]
fn the_reference_parser_reads_open_metrics() {
    let program = "import sys\n\
        try:\n from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
        except ImportError: sys.exit(42)\n\
        print(len(list(read(sys.stdin.read()))))";
    let mut command = Command::new("python3");
    command.args(["-c", program]).stdin(Stdio::piped());
    let Ok(mut python) = command.stdout(Stdio::piped()).spawn() else {
        println!("SKIPPED: python3 is not installed");
        return;
    };
    // Without the parser it ends before it reads.
    let _ = python.stdin.take().unwrap().write_all(written().as_bytes());
    let output = python.wait_with_output().unwrap();
    if output.status.code() == Some(42) {
        println!("SKIPPED: the Python package prometheus_client is not installed");
        return;
    }
    let families = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success());
    assert_eq!(families.trim(), read(&written()).0.len().to_string());
}
