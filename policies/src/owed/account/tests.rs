use super::*;

const A: TenantId = TenantId(1);
const B: TenantId = TenantId(2);
const SECOND: u64 = 1_000_000_000;

fn account_with(owed: i64, alone: Fraction) -> Account {
    let mut account = Account::new();
    account.add(A, "a".into(), TenantParams::default(), Moment(0));
    let node = &mut account.tenants.get_mut(&A).unwrap().node;
    (node.owed, node.alone) = (owed, alone);
    account.note_least(Moment(0));
    account
}

fn leave(account: &mut Account, id: TenantId, at: u64) {
    account.leave(id, Moment(at));
    account.note_least(Moment(at));
    assert_eq!(account.retire(Moment(at)), [id]);
}

fn add(account: &mut Account, id: TenantId, name: &str, at: u64) -> Node {
    account.add(id, name.into(), TenantParams::default(), Moment(at));
    account.tenants[&id].node.clone()
}

#[test]
fn a_name_goes_on_where_it_left() {
    let half = Fraction::percent(50);
    let mut account = account_with(-5, half);
    leave(&mut account, A, 1);
    let node = add(&mut account, B, "a", 100 * SECOND);
    assert_eq!((node.owed, node.alone), (-5, half));
    leave(&mut account, B, 101 * SECOND);
    account.forget_name("a");
    let node = add(&mut account, A, "a", 102 * SECOND);
    assert_eq!(node.alone, Fraction::ONE);
}

#[test]
fn a_new_name_is_owed_no_more_than_the_least_of_its_account_lately() {
    let mut account = account_with(-5, Fraction::ONE);
    leave(&mut account, A, 1);
    assert_eq!(add(&mut account, B, "b", 9 * SECOND).owed, -5);
    leave(&mut account, B, 9 * SECOND);
    assert_eq!(add(&mut account, A, "c", 30 * SECOND).owed, 0, "long ago");
    let mut account = account_with(7, Fraction::ONE);
    assert_eq!(
        add(&mut account, B, "b", 1).owed,
        0,
        "and never more than nothing"
    );
}

#[test]
fn of_tenants_with_one_name_the_least_owed_is_kept() {
    let mut account = account_with(-5, Fraction::ONE);
    add(&mut account, B, "a", 1);
    leave(&mut account, A, 2);
    leave(&mut account, B, 3);
    assert_eq!(add(&mut account, A, "a", 4).owed, -5);
}

#[test]
fn a_name_that_returns_before_its_readings_goes_on() {
    let mut account = account_with(-5, Fraction::ONE);
    account.leave(A, Moment(10));
    assert_eq!(add(&mut account, B, "a", 11).owed, -5);
    assert_eq!(account.tenants[&A].successor, Some(B));
    assert_eq!(account.retire(Moment(9)), []);
    assert_eq!(account.retire(Moment(10)), [A]);
    assert!(account.names.is_empty(), "the name is that of B");
}

#[test]
fn the_name_that_is_owed_most_makes_room() {
    let mut account = Account::new();
    for index in 0..=NAMES_MAX as u32 {
        let id = TenantId(index);
        add(&mut account, id, &format!("n{index}"), 0);
        account.tenants.get_mut(&id).unwrap().node.owed = -i64::from(index % 100) - 1;
        leave(&mut account, id, 0);
    }
    assert_eq!(account.names.len(), NAMES_MAX);
    let dropped: Vec<u32> = (0..=NAMES_MAX as u32)
        .filter(|index| !account.names.contains_key(format!("n{index}").as_str()))
        .collect();
    assert!(
        dropped.iter().all(|index| index % 100 == 0) && dropped.len() == 1,
        "{dropped:?}"
    );
}

fn seen(tenant: TenantId, has_work: bool, idle_ns: u64) -> Seen {
    Seen {
        tenant,
        has_work,
        idle: Nanos(idle_ns),
        blocks: false,
    }
}

#[test]
fn live_tenants_divide_the_part_of_their_account() {
    let mut account = account_with(0, Fraction::ONE);
    add(&mut account, B, "b", 0);
    account.tenants.get_mut(&B).unwrap().weight = Weight::new(300).unwrap();
    let parts = |account: &mut Account, others| {
        account.divide(others);
        let part = |id| account.tenants[&id].state.part.permille();
        (account.part.permille(), part(A), part(B))
    };
    account.see(A, Some(&seen(A, true, 0)), Moment(0));
    account.see(B, Some(&seen(B, true, 0)), Moment(0));
    assert_eq!(account.live(), 2);
    assert_eq!(parts(&mut account, 100), (500, 125, 375));
    account.see(B, Some(&seen(B, false, SECOND)), Moment(SECOND));
    assert_eq!(account.live(), 1);
    assert_eq!(
        parts(&mut account, 0),
        (1_000, 1_000, 750),
        "B if it took part"
    );
}

#[test]
fn a_tenant_is_present_a_moment_longer_than_it_has_work() {
    let mut account = account_with(0, Fraction::ONE);
    let mut present = |idle: Option<u64>| {
        account.see(A, idle.map(|idle| seen(A, false, idle)).as_ref(), Moment(5));
        account.any_present()
    };
    assert!(present(Some(999_999)));
    assert!(!present(Some(1_000_000)));
    assert!(!present(None));
}

#[test]
fn usage_is_of_the_time_in_which_a_tenant_is_admitted() {
    let mut usage = Usage::new();
    usage.add(Nanos::from_ms(10), Nanos::from_ms(100));
    usage.close_window();
    assert_eq!(usage.fraction, Fraction::ONE, "too short to know");
    usage.add(Nanos::from_ms(10), Nanos::from_ms(100));
    usage.close_window();
    assert_eq!(usage.fraction, Fraction::percent(10));
}

#[test]
fn a_quota_is_kept_while_its_cap_is_the_same() {
    let cap = Cap::new(Nanos(20), Nanos(100)).ok();
    let mut node = Node::new(0, None);
    set_quota(&mut node, cap, Moment(0));
    node.quota.as_mut().unwrap().charge(Nanos(20));
    set_quota(&mut node, cap, Moment(1));
    assert!(node.is_capped());
    set_quota(&mut node, None, Moment(1));
    assert!(!node.is_capped());
}
