//! Tenants of several Unix users as the host takes them in.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use turnstile_accounting::TenantId;
use turnstile_policies::Weight;
use turnstile_vmm::wire::{FrameReader, Metadata, PROTOCOL, Read, Region, ToDaemon, ToVmm};

use super::*;
use crate::accounts::Origin;
use crate::admission::admit as admit_vm;
use crate::host::mailbox::Letter;
use crate::limits::{Limits, Resource, rows};
use crate::{Host, HostConfig};
use turnstile_host::memory_file::memory_file;
use turnstile_soft::{SoftConfig, SoftGpu};

/// A host on which a resource has this bound for one account.
fn bounded(resource: Resource, account: u64) -> Arc<Host> {
    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    let mut host = Host::new(Arc::new(gpu), HostConfig::default()).unwrap();
    let mut rows = rows(256);
    rows[resource as usize].account = account;
    host.common.limits = Limits::new(rows);
    Arc::new(host)
}

fn host() -> Arc<Host> {
    let gpu = SoftGpu::new(SoftConfig::default()).unwrap();
    Arc::new(Host::new(Arc::new(gpu), HostConfig::default()).unwrap())
}

/// A VMM of this user connects; its tenant, or what it reads of the refusal.
fn admit(host: &Arc<Host>, uid: u32, name: &str, weight: Option<u32>) -> Result<TenantId, String> {
    admit_with(host, uid, name, weight, 0)
}

/// The same, of a VM with this much memory that no page stands behind.
fn admit_with(
    host: &Arc<Host>,
    uid: u32,
    name: &str,
    weight: Option<u32>,
    memory_bytes: u64,
) -> Result<TenantId, String> {
    let (own, theirs) = UnixStream::pair().unwrap();
    let hello = ToDaemon::Hello {
        protocol: PROTOCOL,
        name: name.into(),
        weight,
        gpu_memory_bytes: None,
        regions: match memory_bytes {
            0 => Vec::new(),
            bytes => vec![Region {
                gpa: 0,
                bytes,
                file_offset: 0,
            }],
        },
        metadata: Metadata::default(),
    };
    let file = (memory_bytes > 0).then(|| memory_file("test", memory_bytes).unwrap().into());
    let vector: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let fds = file.into_iter().chain([vector]).collect();
    let taken = admit_vm(host, hello, fds, own, uid);
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

#[test]
fn sparse_guest_memory_is_refused_at_the_bound_of_its_account_alone() {
    const TIB: u64 = 1 << 40;
    let host = bounded(Resource::GuestMemory, 5 * TIB);
    let enter = |uid, name| admit_with(&host, uid, name, None, 2 * TIB);
    let first = enter(1000, "a").unwrap();
    enter(1000, "b").unwrap();
    let error = enter(1000, "c").unwrap_err();
    assert!(error.contains("the bound is 5497558138880"), "{error}");
    enter(1001, "other").unwrap();
    host.leave(first);
    enter(1000, "c").unwrap();
    let held = host.limits().of_tenant(first);
    assert_eq!(held["guest_memory_bytes"].used, 0);
}

#[test]
fn requests_beyond_the_bound_end_their_vm_alone() {
    let host = bounded(Resource::Requests, 0);
    let one = admit(&host, 1000, "a", None).unwrap();
    let letter = Letter {
        id: 1,
        op: 8,
        args: [0; 8],
    };
    assert!(!host.mailbox(one, letter));
    assert_eq!(host.limits().snapshot().refused["requests"], 1);
}
