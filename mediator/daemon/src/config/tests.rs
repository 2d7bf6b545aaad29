//! Precedence, and the problems reported for a wrong configuration.

use super::*;
use crate::AccountsConfig;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use turnstile_abi::GPU_MEMORY_BYTES_MAX;

fn from(text: &str) -> Result<Effective, ConfigError> {
    let mut layers = Layers::new();
    layers.text(Path::new("t.toml"), text);
    layers.finish()
}

fn refusal(text: &str) -> String {
    from(text).unwrap_err().to_string()
}

#[test]
fn the_preemptors_key_of_the_release_before_still_works() {
    for (text, preemptor) in [
        ("", true),
        ("preemptor = false", false),
        ("usher = false", false),
    ] {
        let effective = from(&format!("[gpu]\n{text}")).unwrap();
        assert_eq!(effective.config.gpu.preemptor, preemptor, "{text}");
    }
    let mut layers = Layers::new();
    layers.variables([("TURNSTILE_GPU_USHER".into(), "false".into())].into_iter());
    assert!(!layers.finish().unwrap().config.gpu.preemptor);
}

#[test]
fn later_layers_win_key_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("turnstile.toml");
    let drop_ins = folder.path().join("conf.d");
    fs::create_dir(&drop_ins).unwrap();
    let files = [
        (
            main.clone(),
            "[ledger]\nwindow_ms = 100\nkeep_days = 1\nnode = \"a\"\n[scheduling]\nperiod_ms = 1",
        ),
        (drop_ins.join("20-b.toml"), "[ledger]\nwindow_ms = 300"),
        (
            drop_ins.join("10-a.toml"),
            "[ledger]\nwindow_ms = 200\nkeep_days = 2",
        ),
        (drop_ins.join(".hidden.toml"), "[ledger]\nwindow_ms = 99"),
        (drop_ins.join("note.txt"), "not TOML"),
    ];
    for (path, text) in &files {
        fs::write(path, text).unwrap();
    }
    let mut layers = Layers::new();
    layers.files(&main, true);
    let variables = [
        ("TURNSTILE_LEDGER_NODE", "17"),
        ("TURNSTILE_SCHEDULING_PERIOD_MS", "4"),
        ("TURNSTILE_CRASHES", "1000"),
        ("PATH", "/bin"),
    ];
    layers.variables(variables.map(|(k, v)| (k.into(), v.into())).into_iter());
    layers.option("--period-ms", "scheduling.period_ms", Some(5));
    layers.option("--ledger", "ledger.path", None::<PathBuf>);
    layers.assignment("api.viewers=[\"gid:7\"]");
    let effective = layers.finish().unwrap();
    let ledger = &effective.config.ledger;
    assert_eq!((ledger.window_ms, ledger.keep_days), (300, 2));
    assert_eq!(ledger.node.as_deref(), Some("17"), "a text of digits");
    assert_eq!(effective.config.scheduling.period_ms, Some(5));
    assert_eq!(effective.config.api.viewers, [Principal::Gid(7)]);
    assert_eq!(effective.files.len(), 3);
    let origin = |key| effective.settings[key].origin.to_string();
    assert!(origin("ledger.window_ms").ends_with("conf.d/20-b.toml:2"));
    assert!(origin("ledger.keep_days").ends_with("10-a.toml:3"));
    assert_eq!(origin("ledger.node"), "TURNSTILE_LEDGER_NODE");
    assert_eq!(origin("scheduling.period_ms"), "--period-ms");
    assert_eq!(origin("gpu.kind"), "default");
    assert_eq!(effective.settings["ledger.path"].value, None);
}

#[test]
fn without_a_word_all_is_as_by_default() {
    let mut layers = Layers::new();
    let nowhere = tempfile::tempdir().unwrap().path().join("none.toml");
    layers.files(&nowhere, false);
    let effective = layers.finish().unwrap();
    assert_eq!(effective.config, Config::default());
    assert_eq!(effective.settings.len(), known_keys().len());
    let mut missing = Layers::new();
    missing.files(&nowhere, true);
    let missing = missing.finish().unwrap_err().to_string();
    assert!(
        missing.contains("none.toml:1: cannot be read: "),
        "{missing}"
    );
}

#[test]
fn unknown_key_error_gives_the_line_and_the_nearest_key() {
    let text = "[ledger]\nwindow_ms = 60\nwindw_ms = 61\n\n[lodger]\npath = \"x\"\n[gpu]\nweight = 3\nlink_mb_s = 3";
    let refusal = refusal(text);
    let lines: Vec<&str> = refusal.lines().collect();
    assert_eq!(
        lines,
        [
            "t.toml:2: ledger.window_ms: 60 is not within 100 and 3600000",
            "t.toml:3: ledger.windw_ms is not known; did you mean ledger.window_ms?",
            "t.toml:5: lodger is not known; did you mean ledger?",
            "t.toml:8: gpu.weight is not known; `turnstile config show` prints all keys",
            "t.toml:9: gpu.link_mb_s is not known; did you mean gpu.soft.link_mb_s?",
        ]
    );
}

#[test]
fn each_invalid_setting_is_reported_with_its_location() {
    assert!(
        refusal("[ledger]\nwindow_ms = \"x\"").starts_with("t.toml:2: ledger.window_ms = \"x\": ")
    );
    assert!(
        refusal("[ledger]\nwindow_ms = 0")
            .starts_with("t.toml:2: ledger.window_ms: 0 is not within")
    );
    assert_eq!(
        refusal("\nledger = 3"),
        "t.toml:2: ledger is a section, not a key"
    );
    assert!(refusal("[gpu]\nkind = \"amd\"").contains("`nvidia`"));
    assert!(refusal("[gpu]\nkind = ").starts_with("t.toml:2: "));
    assert!(refusal("[gpu]\nindex = 1\nindex = 2").starts_with("t.toml:3: "));
    assert!(refusal("[api]\noperators = [\"root\"]").contains("\"root\" is no principal"));
    assert!(refusal("[api]\nlisten = \"0.0.0.0:443\"").contains("mutual TLS alone"));
    assert!(refusal("[metrics]\nlisten = \"10.0.0.1:9400\"").contains("loopback"));
    assert!(refusal("[scheduling]\npolicy = \"best\"").contains("dfq"));
    let mut layers = Layers::new();
    layers.variables([("TURNSTILE_LEDGER_PTAH".into(), "/x".into())].into_iter());
    layers.assignment("ledger.window_ms");
    layers.option("--weight", "scheduling.default_weight", Some(-1));
    let refusal = layers.finish().unwrap_err().to_string();
    assert!(
        refusal.contains("TURNSTILE_LEDGER_PTAH: no such key; did you mean TURNSTILE_LEDGER_PATH?")
    );
    assert!(
        refusal.contains("SECTION.KEY=VALUE")
            && refusal.contains("--weight: scheduling.default_weight = -1")
    );
}

#[test]
fn each_key_has_a_variable_of_its_own() {
    let names = known_keys().keys().map(|key| key.replace('.', "_"));
    let distinct: std::collections::BTreeSet<_> = names.collect();
    assert_eq!(distinct.len(), known_keys().len());
}

#[test]
fn what_is_shown_is_what_is_read() {
    let text = toml::to_string(&Config::default()).unwrap();
    assert_eq!(from(&text).unwrap().config, Config::default());
}

proptest! {
    #[test]
    fn no_text_makes_it_fall_over(text in "\\PC{0,200}") {
        let _ = from(&text);
    }

    #[test]
    fn nor_one_of_its_own_words(words in proptest::collection::vec(
        prop_oneof!["\\[(gpu|ledger|api|api\\.tls|x)\\]", "(index|path|tls|operators|kind) = ?(1|\"a\"|\\[\\]|\\{a=1\\}|1979-05-27)", "\\[\\[gpu\\]\\]"], 0..8)) {
        let _ = from(&words.join("\n"));
    }

    #[test]
    fn principal_text_round_trips(text in "(uid|gid):[0-9]{1,9}|(user|group|cert):[a-z ]{1,9}") {
        let principal: Principal = text.parse().unwrap();
        prop_assert_eq!(principal.to_string().parse::<Principal>(), Ok(principal));
    }
}

#[test]
fn the_packaged_file_shows_every_key_and_its_default() {
    let text = include_str!("../../../package/turnstile.toml");
    let packaged = from(text).unwrap();
    let set: Vec<_> = (packaged.settings.iter())
        .filter(|(_, setting)| setting.origin != Origin::Default)
        .map(|(key, _)| *key)
        .collect();
    let packages = ["api.state", "ledger.path"];
    assert_eq!(set, packages, "what a package sets on its own");
    // A comment begins with "# ", a key that is not set with "#".
    let all: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') && !key.starts_with("postgres") => key,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let shown = from(&all).unwrap();
    for (key, default) in known_keys() {
        let setting = &shown.settings[key.as_str()];
        if key.starts_with("ledger.postgres") {
            let name = key.rsplit('.').next().unwrap();
            assert!(text.contains(&format!("#{name} = ")), "{key} is not shown");
            continue;
        }
        assert_ne!(setting.origin, Origin::Default, "{key} is not shown");
        // A user without access to the system's folder has another one.
        let own = key == "sockets.vmm";
        assert!(
            own || default.is_none() || setting.value == *default,
            "{key} is shown as {:?} and is {default:?}",
            setting.value
        );
    }
}

#[test]
fn accounts_are_read_in_their_order_and_refused_with_their_name() {
    let text = "[[account]]\nname = \"victims\"\nmatch = [\"victim*\"]\nweight_max = 1000\nquota = \"50%\"\n\
                [[account]]\nname = \"rest\"\nuser = \"root\"\nmemory_max_mib = 2\n\
                [vfio_user]\nfolder = \"/x\"\nvms = [\"web:300@gold\", \"db\"]\n";
    let effective = from(text).unwrap();
    let accounts = AccountsConfig::from(&effective.config);
    let names: Vec<_> = accounts
        .entries
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["victims", "rest"]);
    let (victims, rest) = (&accounts.entries[0].1, &accounts.entries[1].1);
    assert_eq!(victims.weight_max.get(), 1_000);
    assert_eq!(victims.cap.unwrap().quota_ns().0, 50_000_000);
    assert_eq!(rest.memory_max_bytes, Some(2 << 20));
    assert_eq!(accounts.fronts, [("web".into(), "gold".into())].into());
    let shown = from(&effective.to_toml()).unwrap();
    assert_eq!(shown.config.account, effective.config.account);

    let twice = refusal("[[account]]\nname = \"a\"\n[[account]]\nname = \"a\"\n");
    assert_eq!(twice, "t.toml:1: account: a is there twice");
    assert!(refusal("[[account]]\nweight = 7\n").contains("account: \"\": a name has"));
    assert!(
        refusal("[[account]]\nname = \"a\"\nquota = \"7\"\n").contains("no part of the engine")
    );
    assert!(
        refusal("[[account]]\nname = \"a\"\nmatch = [\"ä\"]\n").contains("matches no tenant name")
    );
    assert!(refusal("[[account]]\nname = \"a\"\nweigth = 7\n").contains("weigth"));
    assert!(refusal("[account]\nname = \"a\"\n").starts_with("t.toml:1: account"));
}

#[test]
fn software_gpu_has_the_same_defaults() {
    let (section, soft) = (
        SoftSection::default(),
        turnstile_soft::SoftConfig::default(),
    );
    assert_eq!(section.memory_mib << 20, soft.memory_bytes);
    assert_eq!(section.link_mb_s * 1_000_000, soft.link_rate);
}

#[test]
fn all_problems_are_reported_at_once_with_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("t.toml");
    let drop_in = folder.path().join("conf.d/a.toml");
    fs::create_dir_all(&drop_in).unwrap();
    let text = "[gpu]\nkind = \"sfot\"\n[scheduling]\npolicy = \"dqf\"\ndefault_weight = 0\n\
                [ledger]\nwindw_ms = 1\n[[account]]\nname = \"a\"\nweigth = 7\n";
    fs::write(&main, text).unwrap();
    let mut layers = Layers::new();
    layers.files(&main, true);
    let found = layers.finish().unwrap_err().to_string();
    for part in [
        "t.toml:2: gpu.kind = \"sfot\"",
        "did you mean soft?",
        "t.toml:4: scheduling.policy: there is no such policy; did you mean dfq?",
        "t.toml:5: scheduling.default_weight: 0 is not within 1 and 10000",
        "t.toml:7: ledger.windw_ms is not known; did you mean ledger.window_ms?",
        "did you mean weight",
        "a.toml:1: cannot be read",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert_eq!(found.lines().count(), 6, "{found}");
}

#[test]
fn memory_of_a_vm_has_one_bound_and_fits_on_the_gpu() {
    let mib = GPU_MEMORY_BYTES_MAX >> 20;
    let of =
        |vm: u64, card: u64| format!("[memory]\nvm_mib = {vm}\n[gpu.soft]\nmemory_mib = {card}\n");
    from(&of(mib, mib)).unwrap();
    from(&of(288 << 10, 288 << 10)).unwrap();
    assert!(refusal(&of(mib + 2, mib + 2)).contains("is not within 2 and 1048576"));
    let small = refusal(&of(100_000, 1_024));
    assert!(
        small.contains("does not fit on a GPU of 1024 MiB"),
        "{small}"
    );
    assert!(refusal(&of(63, 1_024)).contains("a multiple of 2 MiB"));
}

#[test]
fn names_of_orchestrators_are_taken() {
    let pod = format!("{}.{}", "a".repeat(126), "b".repeat(126));
    assert_eq!(pod.len(), 253);
    for name in [&*pod, "team-a.web-0", "instance-00000001", "web+db_1"] {
        assert!(crate::is_tenant_name(name), "{name}");
    }
    for name in ["", "a/b", "a b", "ä", &format!("{pod}c")] {
        assert!(!crate::is_tenant_name(name), "{name}");
    }
    let vms = refusal(&format!(
        "[vfio_user]\nfolder = \"/run\"\nvms = [\"{pod}\"]\n"
    ));
    assert!(vms.contains("more than 107 bytes"), "{vms}");
}

#[test]
fn several_nvidia_gpus_are_cards_of_one_daemon() {
    let card = "[[card]]\nkind = \"nvidia\"\n";
    let config = from(&format!("{card}{card}{card}index = 5\n"))
        .unwrap()
        .config;
    let cards = config.cards();
    let of = |card: &Config| (card.gpu.kind, card.gpu.index, card.policy().to_owned());
    let nvidia = |index| (GpuKind::Nvidia, index, "owed".to_owned());
    let found: Vec<_> = cards.iter().map(of).collect();
    assert_eq!(found, [nvidia(0), nvidia(1), nvidia(5)]);
    let mixed = from(&format!("{card}[[card]]\nkind = \"soft\"\n")).unwrap();
    let policies: Vec<_> = mixed.config.cards().iter().map(of).collect();
    assert_eq!(policies[1].2, "dfq");
    let twice = refusal(&format!("{card}{card}index = 0\n"));
    assert!(twice.contains("the NVIDIA GPU 0 is named twice"), "{twice}");
}

/// A configuration on a host with the NVIDIA GPUs 1 and 3: kind and number of each card.
fn on_host(text: &str) -> Result<Vec<(GpuKind, u32)>, String> {
    let gpu = |index| HostGpu {
        index,
        uuid: format!("GPU-{index}{index}"),
        address: format!("0000:0{index}:00.0"),
    };
    let config = from(text).unwrap().on_host(&[gpu(1), gpu(3)]);
    let cards = config.map_err(|error| error.to_string())?.cards();
    Ok(cards
        .iter()
        .map(|card| (card.gpu.kind, card.gpu.index))
        .collect())
}

#[test]
fn all_nvidia_gpus_of_the_host_are_shared_unless_some_are_named() {
    let nvidia = |index| (GpuKind::Nvidia, index);
    let gpu = "[gpu]\nkind = \"nvidia\"\n";
    assert_eq!(on_host(gpu).unwrap(), [nvidia(1), nvidia(3)]);
    assert_eq!(on_host(&format!("{gpu}index = 0\n")).unwrap(), [nvidia(0)]);
    for name in ["3", "gpu-33", "0000:03:00.0"] {
        let named = format!("{gpu}device = \"{name}\"\n");
        assert_eq!(on_host(&named).unwrap(), [nvidia(3)], "{name}");
    }
    assert_eq!(on_host("").unwrap(), [(GpuKind::Soft, 0)]);
    let card = "[[card]]\nkind = \"nvidia\"\n";
    let named = format!("{card}device = \"GPU-33\"\n[[card]]\n");
    assert_eq!(on_host(&named).unwrap(), [nvidia(3), (GpuKind::Soft, 1)]);
    let missing = on_host(&format!("{gpu}device = \"GPU-22\"\n")).unwrap_err();
    assert!(
        missing.contains("gpu.device: this host has no NVIDIA GPU GPU-22")
            && missing.contains("1 (GPU-11, 0000:01:00.0), 3 ("),
        "{missing}"
    );
    let twice = on_host(&format!("{card}device = \"GPU-33\"\n{card}index = 3\n")).unwrap_err();
    assert!(twice.contains("the NVIDIA GPU 3 is named twice"), "{twice}");
}

#[test]
fn one_nvidia_gpu_of_the_host_is_shared_without_cards() {
    let effective = from("[gpu]\nkind = \"nvidia\"\n").unwrap();
    let gpu = HostGpu {
        index: 0,
        uuid: "GPU-0".into(),
        address: "0000:01:00.0".into(),
    };
    assert_eq!(effective.on_host(&[gpu]).unwrap(), effective.config);
    assert_eq!(effective.on_host(&[]).unwrap(), effective.config);
}
