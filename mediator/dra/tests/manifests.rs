//! The chart and the examples of `mediator/package/kubernetes`: each is YAML, and its names are
//! those of the code.
//!
//! The chart's templates use values, `toJson` and `default` alone, which are filled in here.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use turnstile_dra::config::GpuConfig;
use turnstile_dra::names::{
    CDI_FOLDER, CONFIG_KIND, CONFIG_VERSION, DRIVER, MEMORY, PLUGINS, REGISTRY, SHARE,
};

fn folder() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../package/kubernetes"
    ))
}

fn parsed(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// All documents of a folder's files.
fn documents(below: &str, fill: impl Fn(&str) -> String) -> Vec<Value> {
    let entries = fs::read_dir(folder().join(below)).unwrap();
    let text = |entry: std::io::Result<fs::DirEntry>| fs::read_to_string(entry.unwrap().path());
    let all: Vec<Value> = entries
        .flat_map(|entry| parsed(&fill(&text(entry).unwrap())))
        .collect();
    assert!(!all.is_empty());
    all
}

/// What stands for `{{ expression }}`.
fn value(expression: &str, context: &Value) -> String {
    let (path, default) = match expression.split_once(" | default ") {
        Some((path, default)) => (path, Some(default)),
        None => (expression, None),
    };
    let (path, as_json) = match path.strip_prefix("toJson ") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let found = context.pointer(&path.replace('.', "/"));
    match found.unwrap_or_else(|| panic!("{path} is no value")) {
        found if as_json => found.to_string(),
        Value::String(text) if text.is_empty() => value(default.unwrap(), context),
        Value::String(text) => text.clone(),
        found => found.to_string(),
    }
}

/// The chart, as it is with its own values.
fn chart() -> Vec<Value> {
    let read = |name: &str| fs::read_to_string(folder().join("chart").join(name)).unwrap();
    let of = |name: &str| parsed(&read(name)).remove(0);
    let chart = of("Chart.yaml");
    let context = json!({
        "Values": of("values.yaml"),
        "Release": { "Namespace": "kube-system" },
        "Chart": { "AppVersion": chart["appVersion"] },
    });
    documents("chart/templates", |text| {
        let mut parts = text.split("{{ ");
        let mut filled = parts.next().unwrap().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once(" }}").expect("an end of the expression");
            filled += &value(expression, &context);
            filled += rest;
        }
        filled
    })
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found: Vec<&Value> = documents.iter().filter(|one| one["kind"] == kind).collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

fn texts(values: &Value) -> Vec<&str> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value.as_str().unwrap()).collect()
}

#[test]
fn chart_names_the_driver_and_mounts_each_folder_where_it_is_on_the_host() {
    let chart = chart();
    let class = of_kind(&chart, "DeviceClass")[0];
    assert_eq!(class["metadata"]["name"], DRIVER);
    let expression = &class["spec"]["selectors"][0]["cel"]["expression"];
    assert_eq!(*expression, format!("device.driver == '{DRIVER}'"));
    let pod = &of_kind(&chart, "DaemonSet")[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let own = format!("{PLUGINS}/{DRIVER}");
    let mut needed = BTreeSet::from(["/run/turnstile", own.as_str(), REGISTRY, CDI_FOLDER]);
    for mount in container["volumeMounts"].as_array().unwrap() {
        let mut volumes = pod["volumes"].as_array().unwrap().iter();
        let volume = volumes
            .find(|volume| volume["name"] == mount["name"])
            .unwrap();
        assert_eq!(volume["hostPath"]["path"], mount["mountPath"]);
        assert!(
            needed.remove(mount["mountPath"].as_str().unwrap()),
            "{mount}"
        );
    }
    assert!(needed.is_empty(), "{needed:?}");
    // No right is given beyond the folders.
    assert_eq!(
        container["securityContext"]["capabilities"]["drop"],
        json!(["ALL"])
    );
    assert_eq!(container["securityContext"]["privileged"], Value::Null);
    let help = Command::new(env!("CARGO_BIN_EXE_turnstile-dra"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for argument in texts(&container["args"]) {
        let option = argument.split('=').next().unwrap();
        assert!(help.contains(&format!("{option} <")), "{argument}: {help}");
    }
}

#[test]
fn driver_may_do_what_it_does_and_nothing_else() {
    let chart = chart();
    let rules = of_kind(&chart, "ClusterRole")[0]["rules"]
        .as_array()
        .unwrap();
    let rules = rules
        .iter()
        .map(|rule| (texts(&rule["resources"])[0], texts(&rule["verbs"])));
    let expected = [
        ("resourceclaims", vec!["get"]),
        ("resourceslices", vec!["get", "create", "update"]),
        ("nodes", vec!["get"]),
    ];
    assert_eq!(rules.collect::<Vec<_>>(), expected);
    let account = &of_kind(&chart, "ServiceAccount")[0]["metadata"]["name"];
    let pod = &of_kind(&chart, "DaemonSet")[0]["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], *account);
    let condition = &of_kind(&chart, "ValidatingAdmissionPolicy")[0]["spec"]["matchConditions"];
    let user = format!(
        "system:serviceaccount:kube-system:{}",
        account.as_str().unwrap()
    );
    assert!(condition[0]["expression"].as_str().unwrap().contains(&user));
}

#[test]
fn examples_request_capacities_and_configuration_that_the_driver_knows() {
    let examples = documents("examples", str::to_owned);
    let mut classes = BTreeSet::from([DRIVER.to_owned()]);
    let mut configs = Vec::new();
    for class in of_kind(&examples, "DeviceClass") {
        classes.insert(class["metadata"]["name"].as_str().unwrap().to_owned());
        configs.extend(class["spec"]["config"].as_array().unwrap());
    }
    let templates = of_kind(&examples, "ResourceClaimTemplate");
    let templates = templates
        .into_iter()
        .map(|template| &template["spec"]["spec"]["devices"]);
    let claims = of_kind(&examples, "ResourceClaim");
    let claims = claims.into_iter().map(|claim| &claim["spec"]["devices"]);
    let mut shares = Vec::new();
    for devices in claims.chain(templates) {
        for request in devices["requests"].as_array().unwrap() {
            let exactly = &request["exactly"];
            assert!(classes.contains(exactly["deviceClassName"].as_str().unwrap()));
            let requested = exactly["capacity"]["requests"].as_object().unwrap();
            assert_eq!(requested.keys().collect::<Vec<_>>(), [MEMORY, SHARE]);
            shares.push(requested[SHARE].as_str().unwrap().parse::<u32>().unwrap());
        }
        configs.extend(devices["config"].as_array().into_iter().flatten());
    }
    assert_eq!(shares, [50, 40, 20, 33]);
    assert_eq!(configs.len(), 2);
    for opaque in configs.into_iter().map(|config| &config["opaque"]) {
        let parameters = &opaque["parameters"];
        assert_eq!(opaque["driver"], DRIVER);
        assert_eq!(parameters["apiVersion"], CONFIG_VERSION);
        assert_eq!(parameters["kind"], CONFIG_KIND);
        serde_json::from_value::<GpuConfig>(parameters.clone()).unwrap();
    }
    // Each pod's claims exist, and its containers use them.
    let named: BTreeSet<&str> = examples
        .iter()
        .filter_map(|one| one["metadata"]["name"].as_str())
        .collect();
    for pod in of_kind(&examples, "Pod") {
        let claim = &pod["spec"]["resourceClaims"][0];
        let of = claim["resourceClaimName"]
            .as_str()
            .or(claim["resourceClaimTemplateName"].as_str());
        assert!(named.contains(of.unwrap()), "{pod}");
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["claims"][0]["name"],
            claim["name"]
        );
    }
}
