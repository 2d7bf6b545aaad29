use super::*;

#[test]
fn names_of_kinds_and_causes_are_read_back() {
    for kind in [TenantKind::Vm, TenantKind::Program, TenantKind::Untracked] {
        assert_eq!(TenantKind::parse(kind.as_str()), Some(kind));
    }
    for cause in GapCause::ALL {
        assert_eq!(GapCause::parse(cause.as_str()), Some(cause));
    }
    assert_eq!(TenantKind::parse("VM"), None);
}

#[test]
fn texts_cannot_slide_into_each_other() {
    let gpu = |node: &str, gpu: &str| GpuIdentity {
        node: node.into(),
        gpu: gpu.into(),
        model: String::new(),
    };
    assert_ne!(
        Digest::genesis(&gpu("ab", "c")),
        Digest::genesis(&gpu("a", "bc"))
    );
}

fn metadata(id: &str, project: Option<&str>, labels: &[(&str, &str)]) -> Arc<Metadata> {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()));
    let id = Some(id).filter(|id| !id.is_empty());
    let metadata = Metadata::new(id, project.map(str::to_owned), labels.collect());
    Arc::new(metadata.unwrap())
}

const INSTANCE: &str = "6f1c2a9e-0d7b-4c55-9b1e-2f8f6f0a1b2c";

type Change<T> = fn(&mut T);

fn tenant_record() -> TenantRecord {
    TenantRecord {
        id: Uuid::from_u128(1),
        tenant: TenantIdentity {
            id: Uuid::from_u128(2),
            name: "a".into(),
            kind: TenantKind::Vm,
            account: Some("gold".into()),
            metadata: Arc::default(),
        },
        engine_ns: Nanos(10),
        estimated_ns: Nanos(11),
        fault_ns: Nanos(12),
        copy_ns: Nanos(13),
        copy_bytes: Some(14),
        held_ns: Nanos(15),
        waiting_ns: Nanos(16),
        memory_byte_ns: Some(17),
        weight: 300,
        cap: Some(CapInForce {
            quota_ns: Nanos(18),
            period_ns: Nanos(19),
        }),
        signals: SignalSet::default().with(crate::usage::Signals::Polled),
        error_bound_ns: Nanos(20),
        turns: 21,
    }
}

fn engine_record() -> EngineRecord {
    EngineRecord {
        engine: EngineId(0),
        compute: true,
        used_ns: Nanos(30),
        fault_ns: Nanos(31),
        switching_ns: Nanos(32),
        idle_ns: Nanos(33),
        unobserved_ns: Nanos(34),
        gap_ns: Nanos(35),
        error_bound_ns: Nanos(36),
    }
}

fn window_of(tenant: TenantRecord, engine: EngineRecord) -> Body {
    Body::Window {
        tenants: vec![tenant],
        engines: vec![engine],
    }
}

/// Each field changed alone, and fields of one type exchanged: no two have the same digest.
#[test]
fn digest_covers_every_field_and_its_place() {
    let stretch = Stretch {
        seq: 1,
        boot: Uuid::from_u128(40),
        start: UnixNanos(41),
        end: UnixNanos(42),
        from: Moment(43),
        length_ns: Nanos(44),
    };
    let stretches: [Change<Stretch>; 6] = [
        |of| of.seq += 1,
        |of| of.boot = Uuid::from_u128(50),
        |of| of.start.0 += 100,
        |of| of.end.0 += 100,
        |of| of.from.0 += 100,
        |of| of.length_ns.0 += 100,
    ];
    let tenants: [Change<TenantRecord>; 31] = [
        |of| of.id = Uuid::from_u128(60),
        |of| of.tenant.id = Uuid::from_u128(60),
        |of| of.tenant.name.push('b'),
        |of| of.tenant.kind = TenantKind::Program,
        |of| of.tenant.account = Some("silver".into()),
        |of| of.tenant.account = Some(String::new()),
        |of| of.tenant.account = None,
        |of| of.tenant.metadata = metadata(INSTANCE, None, &[]),
        |of| of.tenant.metadata = metadata("", Some("ab"), &[]),
        |of| of.tenant.metadata = metadata("", None, &[("a", "b")]),
        |of| of.tenant.metadata = metadata("", None, &[("a", "c")]),
        |of| of.tenant.metadata = metadata("", None, &[("ab", "")]),
        |of| of.tenant.metadata = metadata("", None, &[("a", "b"), ("c", "")]),
        |of| of.engine_ns.0 += 100,
        |of| of.estimated_ns.0 += 100,
        |of| of.fault_ns.0 += 100,
        |of| of.copy_ns.0 += 100,
        |of| of.copy_bytes = Some(114),
        |of| of.copy_bytes = Some(0),
        |of| of.copy_bytes = None,
        |of| of.held_ns.0 += 100,
        |of| of.waiting_ns.0 += 100,
        |of| of.memory_byte_ns = Some(1 << 80),
        |of| of.memory_byte_ns = None,
        |of| of.weight += 100,
        |of| of.cap.as_mut().unwrap().quota_ns.0 += 100,
        |of| of.cap.as_mut().unwrap().period_ns.0 += 100,
        |of| of.cap = None,
        |of| of.signals = of.signals.with(crate::usage::Signals::Extrapolated),
        |of| of.error_bound_ns.0 += 100,
        |of| of.turns += 100,
    ];
    let engines: [Change<EngineRecord>; 9] = [
        |of| of.engine = EngineId(9),
        |of| of.compute = false,
        |of| of.used_ns.0 += 100,
        |of| of.fault_ns.0 += 100,
        |of| of.switching_ns.0 += 100,
        |of| of.idle_ns.0 += 100,
        |of| of.unobserved_ns.0 += 100,
        |of| of.gap_ns.0 += 100,
        |of| of.error_bound_ns.0 += 100,
    ];
    let before = Digest([7; 32]);
    let body = || window_of(tenant_record(), engine_record());
    let mut digests = vec![before.follow(&stretch, &body())];
    digests.push(Digest([8; 32]).follow(&stretch, &body()));
    for change in stretches {
        let mut changed = stretch;
        change(&mut changed);
        digests.push(before.follow(&changed, &body()));
        let gap = Body::Gap {
            cause: GapCause::Down,
        };
        digests.push(before.follow(&changed, &gap));
    }
    for change in tenants {
        let mut changed = tenant_record();
        change(&mut changed);
        digests.push(before.follow(&stretch, &window_of(changed, engine_record())));
    }
    for change in engines {
        let mut changed = engine_record();
        change(&mut changed);
        digests.push(before.follow(&stretch, &window_of(tenant_record(), changed)));
    }
    for cause in GapCause::ALL {
        digests.push(before.follow(&stretch, &Body::Gap { cause }));
    }
    let (one, other) = (
        tenant_record(),
        TenantRecord {
            id: Uuid::from_u128(70),
            ..tenant_record()
        },
    );
    for tenants in [vec![], vec![one.clone(), other.clone()], vec![other, one]] {
        let engines = vec![engine_record()];
        digests.push(before.follow(&stretch, &Body::Window { tenants, engines }));
    }
    let engines = vec![engine_record(), engine_record()];
    let tenants = vec![tenant_record()];
    digests.push(before.follow(&stretch, &Body::Window { tenants, engines }));
    let count = digests.len();
    let different: std::collections::HashSet<Digest> = digests.into_iter().collect();
    assert_eq!(different.len(), count);
}

#[test]
fn digests_of_existing_ledgers_do_not_change() {
    let gpu = GpuIdentity {
        node: "n".into(),
        gpu: "g".into(),
        model: "m".into(),
    };
    let genesis = Digest::genesis(&gpu);
    let mut bytes = b"turnstile ledger 1".to_vec();
    for text in ["n", "g"] {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    assert_eq!(genesis.0[..], Sha256::digest(&bytes)[..]);
    assert_eq!(genesis.to_string().len(), 64);
    let other = GpuIdentity {
        model: "another".into(),
        ..gpu
    };
    assert_eq!(
        genesis,
        Digest::genesis(&other),
        "a driver may rename a model"
    );
}

#[test]
fn time_of_an_engine_is_the_sum_of_all_its_parts() {
    assert_eq!(engine_record().accounted_ns(), 30 + 31 + 32 + 33 + 34 + 35);
    let empty = EngineRecord::empty(EngineId(3), false);
    assert_eq!((empty.engine, empty.compute), (EngineId(3), false));
    assert_eq!(empty.accounted_ns(), 0);
}

#[test]
fn record_is_read_back_from_its_text_as_it_was() {
    let mut own = tenant_record();
    own.memory_byte_ns = Some(u128::MAX);
    own.tenant.metadata = metadata(INSTANCE, Some("shop"), &[("tier", "web")]);
    own.signals = own.signals.with(crate::usage::Signals::Extrapolated);
    let text = serde_json::to_string(&own).unwrap();
    assert_eq!(serde_json::from_str::<TenantRecord>(&text).unwrap(), own);
    let bad = text.replace("polled", "guessed");
    assert!(serde_json::from_str::<TenantRecord>(&bad).is_err());
    let text = serde_json::to_string(&engine_record()).unwrap();
    let read = serde_json::from_str::<EngineRecord>(&text).unwrap();
    assert_eq!(read, engine_record());
}

#[test]
fn digest_is_shown_as_hexadecimal_digits_in_each_form() {
    let digest = Digest([0xab; 32]);
    assert_eq!(digest.to_string(), "ab".repeat(32));
    assert_eq!(format!("{digest:?}"), "ab".repeat(32));
}
