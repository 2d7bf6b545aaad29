//! Tables of matches and refusals, and what holds after any sequence of events.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn weight(weight: u32) -> Weight {
    Weight::new(weight).unwrap()
}

fn rule(patterns: &[&str], uid: Option<u32>) -> Rule {
    let entry = Entry {
        patterns: patterns.iter().map(|text| text.parse().unwrap()).collect(),
        user: uid.map(|uid| uid.to_string()),
        ..Entry::default()
    };
    Rule { entry, uid }
}

fn book(entries: &[(&str, Rule)]) -> Book {
    let mut book = Book::default();
    let entries = entries
        .iter()
        .map(|(name, rule)| ((*name).to_owned(), rule.clone()));
    book.configure(entries.collect(), BTreeMap::new(), 0);
    book
}

fn account(book: &mut Book, name: &str, uid: u32) -> Result<String, AccountsError> {
    let granted = book.join(name, uid, Claim::default())?;
    book.leave(name);
    Ok(granted.account.to_string())
}

#[test]
fn patterns_match_names() {
    for (pattern, name, matches) in [
        ("victim*", "victim", true),
        ("victim*", "victim-7", true),
        ("victim*", "a-victim", false),
        ("web", "web", true),
        ("web", "web1", false),
        ("*", "anything", true),
        ("a*b*c", "a-b-c", true),
        ("a*b*c", "abc", true),
        ("a*b*c", "ac", false),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("*.db", "one.db", true),
        ("**x", "x", true),
    ] {
        let parsed: Pattern = pattern.parse().unwrap();
        assert_eq!(parsed.matches(name), matches, "{pattern} {name}");
    }
    for text in ["", "a b", "ä", "a/b", &"a".repeat(254)] {
        assert!(text.parse::<Pattern>().is_err(), "{text}");
    }
}

#[test]
fn first_matching_entry_decides_and_no_entry_is_the_users_account() {
    let mut book = book(&[
        ("both", rule(&["web*"], Some(7))),
        ("names", rule(&["web*", "db"], None)),
        ("user", rule(&[], Some(8))),
        ("neither", rule(&[], None)),
        ("later", rule(&["*z"], None)),
    ]);
    for (name, uid, expected) in [
        ("web1", 7, "both"),
        ("web2", 9, "names"),
        ("db", 8, "names"),
        ("other", 8, "user"),
        ("z", 8, "user"),
        ("z2", 9, "uid-9"),
        ("zz", 9, "later"),
        ("web", 0, "names"),
    ] {
        assert_eq!(
            account(&mut book, name, uid).unwrap(),
            expected,
            "{name} {uid}"
        );
    }
}

#[test]
fn entries_of_the_api_precede_those_of_the_configuration() {
    let mut book = book(&[("all", rule(&["*"], None)), ("later", rule(&["a*"], None))]);
    book.set("gold", Some(rule(&["au*"], None))).unwrap();
    assert_eq!(account(&mut book, "au1", 1).unwrap(), "gold");
    assert_eq!(account(&mut book, "a1", 1).unwrap(), "all");
    // An entry of the API for an account of the configuration keeps the account's place.
    book.set("all", Some(rule(&["b*"], None))).unwrap();
    assert_eq!(account(&mut book, "a2", 1).unwrap(), "later");
    assert_eq!(book.view("all").unwrap().origin, Origin::Api);
    book.set("all", None).unwrap();
    assert_eq!(account(&mut book, "a3", 1).unwrap(), "all");
    assert_eq!(book.view("all").unwrap().origin, Origin::Configuration);
}

#[test]
fn an_unresolved_user_matches_no_tenant() {
    let mut unknown = rule(&["a*"], Some(1));
    unknown.uid = None;
    let mut book = book(&[("gone", unknown)]);
    assert_eq!(account(&mut book, "a", 1).unwrap(), "uid-1");
}

#[test]
fn name_belongs_to_the_account_that_used_it_until_it_is_forgotten() {
    let mut book = book(&[]);
    assert_eq!(account(&mut book, "db", 1).unwrap(), "uid-1");
    let refused = account(&mut book, "db", 2).unwrap_err();
    assert!(matches!(refused, AccountsError::NameOwned { .. }));
    assert_eq!(account(&mut book, "db", 1).unwrap(), "uid-1");
    assert!(book.forget("db").is_some());
    assert_eq!(account(&mut book, "db", 2).unwrap(), "uid-2");
    assert_eq!(account(&mut book, "db", 2).unwrap(), "uid-2");
    book.join("db", 2, Claim::default()).unwrap();
    assert_eq!(book.forget("db"), None, "it is connected");
}

#[test]
fn mapping_of_a_name_outweighs_an_earlier_use_of_it() {
    let mut book = book(&[]);
    account(&mut book, "db", 1).unwrap();
    book.set("gold", Some(rule(&["db"], None))).unwrap();
    assert_eq!(account(&mut book, "db", 2).unwrap(), "gold");
    assert_eq!(&**book.owner("db").unwrap(), "gold");
}

#[test]
fn fronts_name_accounts_of_their_own_user_alone() {
    let mut book = Book::default();
    let fronts = BTreeMap::from([("web".to_owned(), "gold".to_owned())]);
    book.configure(Vec::new(), fronts, 5);
    assert_eq!(account(&mut book, "web", 5).unwrap(), "gold");
    let refused = account(&mut book, "web", 6).unwrap_err();
    assert!(matches!(refused, AccountsError::NameOwned { .. }));
    assert_eq!(account(&mut book, "other", 5).unwrap(), "uid-5");
}

#[test]
fn claims_beyond_the_limits_are_refused_with_the_reason() {
    let mut limited = rule(&["*"], None);
    limited.entry.weight_max = weight(300);
    limited.entry.memory_max_bytes = Some(100);
    limited.entry.tenants_max = Some(3);
    let mut book = book(&[("a", limited)]);
    let claim = |weight_claimed: u32, memory_bytes| Claim {
        weight: Weight::new(weight_claimed).ok(),
        default_weight: weight(500),
        memory_bytes,
    };
    let refused = book.join("x", 1, claim(301, Some(1))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Weight 301 is beyond the 300 that a tenant of account a may claim"
    );
    let granted = book.join("x", 1, claim(300, Some(60))).unwrap();
    assert_eq!(granted.weight, weight(300));
    let refused = book.join("y", 1, claim(1, Some(41))).unwrap_err();
    assert!(refused.to_string().contains("41 bytes"), "{refused}");
    let rest = book.join("y", 1, claim(0, None)).unwrap();
    assert_eq!(rest.memory_bytes, Some(40), "what the account has left");
    assert_eq!(rest.weight, weight(300), "the default, up to the limit");
    let refused = book.join("z", 1, claim(1, None)).unwrap_err();
    assert!(matches!(refused, AccountsError::Memory { left: 0, .. }));
    book.leave("y");
    book.join("y", 1, claim(1, Some(20))).unwrap();
    book.join("z", 1, claim(1, Some(20))).unwrap();
    let refused = book.join("more", 1, claim(1, Some(0))).unwrap_err();
    assert!(matches!(refused, AccountsError::Tenants { max: 3, .. }));
}

#[test]
fn policy_is_given_terms_once_and_again_when_they_change() {
    let mut book = book(&[]);
    let id = book.join("x", 1, Claim::default()).unwrap().id;
    let first = book.take_changed("uid-1");
    assert_eq!(first, Some((id, TenantParams::default())));
    assert_eq!(book.take_changed("uid-1"), None);
    let mut heavy = rule(&[], None);
    heavy.entry.weight = weight(300);
    book.set("uid-1", Some(heavy.clone())).unwrap();
    assert_eq!(book.take_all_changed(), [(id, heavy.entry.params())]);
    assert_eq!(book.take_all_changed(), []);
}

#[test]
fn an_account_with_tenants_is_not_forgotten_and_one_without_frees_its_names() {
    let mut book = book(&[]);
    let id = book.join("x", 1, Claim::default()).unwrap().id;
    let refused = book.set("uid-1", None).unwrap_err();
    assert!(matches!(
        refused,
        AccountsError::Occupied { tenants: 1, .. }
    ));
    book.leave("x");
    assert_eq!(book.set("uid-1", None).unwrap(), [(id, "x".to_owned())]);
    assert_eq!(book.view("uid-1"), None);
    assert_eq!(account(&mut book, "x", 2).unwrap(), "uid-2");
}

#[test]
fn names_are_bounded_and_the_account_with_the_most_loses_its_oldest() {
    let mut book = book(&[]);
    account(&mut book, "victim", 1).unwrap();
    for number in 0..NAMES_MAX {
        account(&mut book, &format!("squat-{number}"), 2).unwrap();
    }
    assert_eq!(book.names().len(), NAMES_MAX);
    assert_eq!(&**book.owner("victim").unwrap(), "uid-1");
    assert_eq!(book.owner("squat-0"), None);
    assert!(book.owner("squat-1").is_some());
}

#[test]
fn accounts_are_bounded() {
    let mut book = book(&[]);
    for uid in 0..ACCOUNTS_MAX as u32 {
        account(&mut book, &format!("t{uid}"), uid).unwrap();
    }
    let refused = account(&mut book, "more", 1_000_000).unwrap_err();
    assert_eq!(refused, AccountsError::TooManyAccounts);
    assert_eq!(book.owner("more"), None);
    account(&mut book, "t0", 0).unwrap();
}

#[test]
fn what_was_kept_is_restored() {
    let mut before = book(&[]);
    account(&mut before, "x", 1).unwrap();
    before.set("gold", Some(rule(&["au*"], None))).unwrap();
    let mut after = book(&[]);
    let made = before.made().into_iter();
    let made = made.map(|(name, entry)| (name, Rule { entry, uid: None }));
    after.restore(made.collect(), before.names());
    assert_eq!(after.names(), before.names());
    assert_eq!(after.made(), before.made());
    assert!(account(&mut after, "x", 2).is_err());
}

#[derive(Clone, Debug)]
enum Event {
    Join(u8, u32, u64),
    Leave(u8),
    Forget(u8),
    Set(u8, u64),
    Delete(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..12_u8, 1..4_u32, 0..60_u64).prop_map(|(n, uid, b)| Event::Join(n, uid, b)),
        3 => (0..12_u8).prop_map(Event::Leave),
        1 => (0..12_u8).prop_map(Event::Forget),
        1 => (1..4_u8, 50..200_u64).prop_map(|(a, b)| Event::Set(a, b)),
        1 => (1..4_u8).prop_map(Event::Delete),
    ]
}

proptest! {
    #[test]
    fn sums_and_owners_hold_after_any_events(events in prop::collection::vec(event(), 0..120)) {
        let mut book = book(&[]);
        // Name -> account, and what its tenant claims while it is connected.
        let mut model: BTreeMap<String, (String, Option<u64>)> = BTreeMap::new();
        for event in events {
            match event {
                Event::Join(n, uid, bytes) => {
                    let name = format!("n{n}");
                    if model.get(&name).is_some_and(|(_, seat)| seat.is_some()) {
                        continue;
                    }
                    let claim = Claim { memory_bytes: Some(bytes), ..Claim::default() };
                    let owner = model.get(&name).map(|(owner, _)| owner.clone());
                    match book.join(&name, uid, claim) {
                        Ok(granted) => {
                            prop_assert!(owner.is_none_or(|owner| *owner == *granted.account));
                            let limit = book.view(&granted.account).unwrap().entry.memory_max_bytes;
                            let account = granted.account.to_string();
                            model.insert(name, (account.clone(), Some(bytes)));
                            let sum: u64 = model.values()
                                .filter(|(of, _)| *of == account)
                                .filter_map(|(_, seat)| *seat)
                                .sum();
                            prop_assert!(limit.is_none_or(|limit| sum <= limit));
                        }
                        Err(AccountsError::NameOwned { .. }) => {
                            prop_assert_ne!(owner.unwrap(), of_user(uid));
                        }
                        Err(AccountsError::Memory { .. }) => {}
                        Err(other) => prop_assert!(false, "{}", other),
                    }
                }
                Event::Leave(n) => {
                    book.leave(&format!("n{n}"));
                    if let Some((_, seat)) = model.get_mut(&format!("n{n}")) {
                        *seat = None;
                    }
                }
                Event::Forget(n) => {
                    let name = format!("n{n}");
                    let absent = model.get(&name).is_some_and(|(_, seat)| seat.is_none());
                    prop_assert_eq!(book.forget(&name).is_some(), absent);
                    if absent {
                        model.remove(&name);
                    }
                }
                Event::Set(a, bytes) => {
                    let mut limited = rule(&[], None);
                    limited.entry.memory_max_bytes = Some(bytes);
                    book.set(&format!("uid-{a}"), Some(limited)).unwrap();
                }
                Event::Delete(a) => {
                    let account = format!("uid-{a}");
                    let present = model.values().any(|(of, seat)| *of == account && seat.is_some());
                    prop_assert_eq!(book.set(&account, None).is_err(), present);
                    if !present {
                        model.retain(|_, (of, _)| *of != account);
                    }
                }
            }
            let names: BTreeMap<String, String> = model.iter()
                .map(|(name, (account, _))| (name.clone(), account.clone()))
                .collect();
            prop_assert_eq!(book.names(), names);
            for (name, view) in book.views() {
                let present = model.values()
                    .filter(|(of, seat)| *of == name && seat.is_some())
                    .count();
                prop_assert_eq!(view.tenants as usize, present);
            }
        }
    }
}
