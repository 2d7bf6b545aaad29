//! Each row is filled to each of its bounds.

use super::*;

fn holder(account: &str, tenant: u32, trusted: bool) -> Holder {
    Holder {
        account: account.into(),
        tenant: Some(TenantId(tenant)),
        trusted,
    }
}

#[test]
fn the_table_leaves_room_for_other_accounts() {
    for tenants_max in [1, 256, 4_096] {
        for (at, row) in rows(tenants_max).iter().enumerate() {
            assert_eq!(row.resource as usize, at, "{}", row.name);
            assert!(row.tenant <= row.account, "{}", row.name);
            assert!(row.account <= row.all / 2, "{}", row.name);
        }
    }
}

#[test]
fn a_full_tenant_or_account_leaves_the_other_account_its_place() {
    for row in rows(256) {
        let limits = Limits::new(rows(256));
        let take = |account: &str, tenant, amount| {
            limits.take(row.resource, &holder(account, tenant, false), amount)
        };
        let first = take("a", 1, row.tenant).unwrap();
        let error = take("a", 1, 1).unwrap_err();
        assert_eq!(
            (error.used, error.max),
            (row.tenant, row.tenant.min(row.account))
        );
        let mut held = vec![first];
        let mut tenant = 1;
        let mut left = row.account - row.tenant;
        while left > 0 {
            tenant += 1;
            let amount = left.min(row.tenant);
            held.push(take("a", tenant, amount).unwrap());
            left -= amount;
        }
        let error = take("a", tenant + 1, 1).unwrap_err();
        assert_eq!(
            (error.scope.as_str(), error.max),
            ("Account a", row.account)
        );
        drop(take("b", 9_999, 1).unwrap());
        assert_eq!(limits.snapshot().refused[row.name], 2);
        assert_eq!(limits.snapshot().all[row.name].used, row.account);
        drop(held);
        assert_eq!(limits.snapshot().all[row.name].used, 0);
        assert!(limits.snapshot().accounts.is_empty(), "{}", row.name);
        assert_eq!(limits.of_tenant(TenantId(1))[row.name].used, 0);
        drop(take("a", 1, row.tenant).unwrap());
    }
}

#[test]
fn the_last_quarter_is_for_root() {
    for row in rows(256) {
        let limits = Limits::new(rows(256));
        let mut held = Vec::new();
        let mut fill = |trusted: bool, max: u64| {
            let mut left = max;
            for number in if trusted { 50_000.. } else { 0.. } {
                let one = holder(&format!("{trusted}{number}"), number, trusted);
                let amount = left.min(row.tenant);
                let Ok(one) = limits.take(row.resource, &one, amount) else {
                    break;
                };
                held.push(one);
                left -= amount;
                if left == 0 {
                    break;
                }
            }
            left
        };
        assert_eq!(fill(false, row.all / 4 * 3), 0, "{}", row.name);
        let other = holder("other", 100_000, false);
        let error = limits.take(row.resource, &other, 1).unwrap_err();
        assert_eq!(error.scope, "The host");
        assert_eq!(fill(true, row.all - row.all / 4 * 3), 0, "{}", row.name);
        let root = holder("root", 100_000, true);
        limits.take(row.resource, &root, 1).unwrap_err();
    }
}

#[test]
fn a_rate_is_for_one_minute() {
    let limits = Limits::new(rows(256));
    let (one, begin) = (holder("a", 1, false), Instant::now());
    let permitted = |at| limits.permits(Resource::LogLines, &one, at);
    let bound = rows(256)[Resource::LogLines as usize].tenant;
    assert_eq!(
        (0..1_000).filter(|_| permitted(begin)).count() as u64,
        bound
    );
    assert!(limits.permits(Resource::LogLines, &holder("b", 2, false), begin));
    assert!(!permitted(begin + RATE_INTERVAL - Duration::from_millis(1)));
    assert!(permitted(begin + RATE_INTERVAL));
    assert_eq!(limits.snapshot().refused["log_lines"], 1_000 - bound + 1);
}

/// `docs/THREAT_MODEL.md` has the table.
#[test]
fn the_documented_table_is_the_one_in_force() {
    let page = include_str!("../../../docs/THREAT_MODEL.md");
    for row in rows(256) {
        let line = page.lines().find(|line| {
            let name = line
                .strip_prefix("| `")
                .and_then(|rest| rest.split('`').next());
            name == Some(row.name)
        });
        let cells: Vec<&str> = line.unwrap().split('|').map(str::trim).collect();
        let value = |cell: &str| {
            let mut parts = cell.split(' ');
            let number: u64 = parts.next().unwrap().parse().unwrap();
            number
                * parts
                    .next()
                    .map_or(1, |unit| if unit == "TiB" { 1 << 40 } else { 1 << 20 })
        };
        let found = [cells[2], cells[3], cells[4]].map(value);
        assert_eq!(found, [row.tenant, row.account, row.all], "{}", row.name);
    }
}
