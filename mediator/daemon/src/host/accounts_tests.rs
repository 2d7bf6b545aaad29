//! Tenants of several Unix users as the host takes them in.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_accounting::TenantId;
use turnstile_policies::Weight;
use turnstile_vmm::wire::{FrameReader, PROTOCOL, Read, ToDaemon, ToVmm};

use super::*;
use crate::HostConfig;
use crate::accounts::Origin;
use turnstile_soft::{SoftConfig, SoftGpu};

fn host() -> Arc<Host> {
    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    Arc::new(Host::new(Arc::new(gpu), HostConfig::default()).unwrap())
}

/// A VMM of this user connects; its tenant, or what it reads of the refusal.
fn admit(host: &Arc<Host>, uid: u32, name: &str, weight: Option<u32>) -> Result<TenantId, String> {
    let (own, theirs) = UnixStream::pair().unwrap();
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: name.into(),
        weight,
        gpu_memory_bytes: None,
        regions: Vec::new(),
    };
    let vector: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let taken = host.admit(hello, vec![vector], own, uid);
    let Ok(Read::Frame(frame)) = FrameReader::new().read::<ToVmm>(&theirs) else {
        panic!("the VMM was not answered");
    };
    match (taken, frame.message) {
        (Ok((tenant, ..)), ToVmm::Welcome { .. }) => Ok(tenant),
        (Err(_), ToVmm::Refused { text }) => Err(text),
        (taken, reported) => panic!("{taken:?} and {reported:?}"),
    }
}

fn account(host: &Host, tenant: TenantId) -> String {
    let snapshot = host.snapshot();
    let found = snapshot.tenants.iter().find(|one| one.tenant == tenant);
    found.unwrap().account.clone()
}

#[test]
fn tenants_of_two_users_are_in_two_accounts() {
    let host = host();
    let tenants = [(1000, "a"), (1001, "b"), (1000, "c")]
        .map(|(uid, name)| admit(&host, uid, name, None).unwrap());
    let accounts = tenants.map(|tenant| account(&host, tenant));
    assert_eq!(accounts, ["uid-1000", "uid-1001", "uid-1000"]);
    let state = host.lock();
    let numbers = tenants.map(|tenant| state.mediation.account(tenant).unwrap());
    assert_eq!(numbers[0], numbers[2]);
    assert_ne!(numbers[0], numbers[1]);
    drop(state);
    let shown = host.snapshot().accounts;
    let tenants: Vec<(&str, u32)> = shown.iter().map(|a| (&*a.name, a.tenants)).collect();
    assert_eq!(tenants, [("uid-1000", 2), ("uid-1001", 1)]);
}

#[test]
fn claim_beyond_the_account_is_refused_and_takes_no_place() {
    let host = host();
    let entry = Entry {
        weight_max: Weight::new(300).unwrap(),
        tenants_max: Some(1),
        ..Entry::default()
    };
    let rule = resolve(entry).unwrap();
    host.set_account("uid-1000", Some(rule)).unwrap();
    let refused = admit(&host, 1000, "a", Some(301)).unwrap_err();
    assert_eq!(
        refused,
        "Weight 301 is beyond the 300 that a tenant of account uid-1000 may claim"
    );
    let tenant = admit(&host, 1000, "a", Some(300)).unwrap();
    let refused = admit(&host, 1000, "b", None).unwrap_err();
    assert!(
        refused.contains("has 1 tenants, which is its limit"),
        "{refused}"
    );
    // A name that is connected is refused before its claim counts.
    let refused = admit(&host, 1000, "a", None).unwrap_err();
    assert!(refused.contains("connected already"), "{refused}");
    host.leave(tenant);
    let tenant = admit(&host, 1000, "b", None).unwrap();
    host.leave(tenant);
    assert_eq!(host.accounts()["uid-1000"].tenants, 0);
}

#[test]
fn name_of_another_account_is_refused_until_it_is_forgotten() {
    let host = host();
    let tenant = admit(&host, 1000, "db", None).unwrap();
    host.forget_name("db");
    host.leave(tenant);
    let refused = admit(&host, 1001, "db", None).unwrap_err();
    assert!(refused.contains("belongs to another account"), "{refused}");
    host.forget_name("db");
    let tenant = admit(&host, 1001, "db", None).unwrap();
    assert_eq!(account(&host, tenant), "uid-1001");
    assert_eq!(host.owner("db").as_deref(), Some("uid-1001"));
}

#[test]
fn configuration_maps_names_and_an_entry_of_the_api_changes_its_terms() {
    let host = host();
    let entry = Entry {
        patterns: vec!["victim*".parse().unwrap()],
        ..Entry::default()
    };
    let config = AccountsConfig {
        entries: vec![("victims".to_owned(), entry.clone())],
        names: BTreeMap::from([("kept".to_owned(), "uid-7".to_owned())]),
        ..AccountsConfig::default()
    };
    host.begin_accounts(config).unwrap();
    let victim = admit(&host, 1000, "victim-1", None).unwrap();
    assert_eq!(account(&host, victim), "victims");
    assert!(admit(&host, 8, "kept", None).is_err());
    let heavy = Entry {
        weight: Weight::new(300).unwrap(),
        ..entry
    };
    host.set_account("victims", Some(resolve(heavy).unwrap()))
        .unwrap();
    let snapshot = host.snapshot();
    let victims = snapshot.accounts.iter().find(|one| one.name == "victims");
    assert_eq!(victims.unwrap().weight, 300);
    assert_eq!(host.accounts()["victims"].origin, Origin::Api);
    let refused = host.set_account("victims", None).unwrap_err();
    assert!(matches!(
        refused,
        AccountsError::Occupied { tenants: 1, .. }
    ));
}

#[test]
fn users_are_resolved_and_unknown_ones_refused() {
    let of = |user: &str| {
        let user = Some(user.to_owned());
        resolve(Entry {
            user,
            ..Entry::default()
        })
    };
    assert_eq!(of("root").unwrap().uid, Some(0));
    assert_eq!(of("1234").unwrap().uid, Some(1234));
    let error = of("no-such-user").unwrap_err();
    assert!(error.to_string().contains("knows no such user"), "{error}");
}
