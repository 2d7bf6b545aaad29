//! Which node has the next own turn, and which tenants are held for it.
//!
//! The account is chosen first: of those that are owed a turn or have a tenant that is, the one
//! that is owed most for its part. Then its tenant that is owed most, unless the account itself is
//! owed more: then all its tenants are admitted together.

use super::account::{Account, Tenant};
use super::fraction::Fraction;
use super::node::Node;
use super::turn::{HOLDER_IDLE_MAX, Holder, OwnTurn, TURN_MAX};
use core::cmp::Reverse;
use std::collections::BTreeMap;
use turnstile_accounting::{AccountId, Moment, Nanos, TenantId};

/// A tenant that is resident for less than this part of the time is not held in own turns of
/// others. SOURCE: simulation `lab corun`.
const SMALL: Fraction = Fraction::percent(8);
/// A tenant that had an own turn in this time is held in own turns of others.
/// SOURCE: simulation `lab corun`.
const OWN_TURN_TIME: Nanos = Nanos::from_ms(10_000);

/// How a turn ends at a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its length is over.
    Over,
    /// Its holder has no work, or may not run.
    Idle,
}

/// Order of nodes: owed time over part, then the least recent own turn.
type Rank = (i128, Reverse<Option<Moment>>);

fn rank(node: &Node, part: Fraction) -> Rank {
    (part.divide(node.owed), Reverse(node.own_turn_at))
}

/// The node that is owed an own turn most.
pub(super) fn choose(accounts: &BTreeMap<AccountId, Account>, turn: Nanos) -> Option<Holder> {
    let candidates = accounts.iter().filter_map(|(id, account)| {
        let own = is_due(account, turn);
        let tenant = due_tenant(account, turn);
        (own || tenant.is_some()).then(|| {
            let rank = rank(&account.node, account.part);
            let tenant = tenant.filter(|(theirs, _)| !own || theirs.0 >= rank.0);
            (rank, *id, tenant)
        })
    });
    let (_, account, tenant) = candidates.max_by_key(|(rank, id, _)| (*rank, *id))?;
    Some(match tenant {
        Some((_, tenant)) => Holder::Tenant(account, tenant),
        None => Holder::Account(account),
    })
}

/// How the own turn ends at this poll, if it does.
pub(super) fn ending(
    accounts: &BTreeMap<AccountId, Account>,
    turn: &OwnTurn,
    now: Moment,
) -> Option<Ending> {
    let (mut idle, mut shut, mut wanted) = (true, true, false);
    for (id, account) in accounts {
        for (tenant_id, tenant) in account.connected() {
            let state = &tenant.state;
            if turn.holder.admits(*id, tenant_id) {
                idle &= !state.has_work && state.idle >= HOLDER_IDLE_MAX;
                shut &= account.is_capped(tenant);
            } else {
                wanted |= state.has_work;
            }
        }
    }
    let late = now.since(turn.from) >= TURN_MAX;
    if shut || idle && (wanted || late) {
        Some(Ending::Idle)
    } else {
        (late || wanted && turn.is_over(now)).then_some(Ending::Over)
    }
}

/// Whether a tenant is held in the own turn of another.
pub(super) fn is_held_in_turn(account: &Account, tenant: &Tenant, now: Moment) -> bool {
    let node = &tenant.node;
    let share = tenant.state.part.times(Fraction::percent(50));
    let recent = |at: Moment| now.since(at) < OWN_TURN_TIME;
    tenant.usage.fraction >= SMALL.min(share)
        || node.own_turn_at.is_some_and(recent)
        || node.owed > 0
        || account.node.owed > 0
}

/// Whether the account is owed a turn and can use it. The only live account has the whole engine.
/// A gang has windows instead.
fn is_due(account: &Account, turn: Nanos) -> bool {
    let gang = account.connected().any(|(_, tenant)| tenant.kind.gang);
    let beside_others = account.live() > 0 && account.part < Fraction::ONE && !gang;
    beside_others && account.any_present() && account.node.is_owed_turn(account.part, turn)
}

/// The tenant of the account that is owed most, of those that are owed a turn and can use it.
fn due_tenant(account: &Account, turn: Nanos) -> Option<(Rank, TenantId)> {
    if account.live() < 2 {
        return None;
    }
    let due = account.connected().filter(|(_, tenant)| {
        !tenant.kind.gang
            && account.is_present(tenant)
            && tenant.node.is_owed_turn(tenant.state.part, turn)
    });
    due.map(|(id, tenant)| (rank(&tenant.node, tenant.state.part), id))
        .max()
}
