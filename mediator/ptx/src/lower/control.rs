//! Branches, barriers and the exchange of data between lanes.

use super::super::code::{
    BarrierArgs, Dst, Logic, Op, Pred, Shuffle, ShuffleArgs, Src, Vote, VoteDst,
};
use super::super::error::LoadError;
use super::super::kernels::compare_integer;
use super::super::parse::Operand;
use super::super::types::{Space, Type};
use super::instruction::Instruction;
use super::{Builder, Targets, call, transfer};

pub(super) fn lower<'a>(
    entry: &mut Builder<'a, '_>,
    mut ptx: Instruction<'_, 'a>,
) -> Result<(), LoadError> {
    match ptx.head {
        "bra" => {
            ptx.take("uni");
            ptx.end()?;
            let [Operand::Name(label)] = ptx.operands else {
                return Err(entry.bad("expected a label"));
            };
            branch(entry, label)
        }
        "ret" => {
            ptx.take("uni");
            ptx.end()?;
            if !ptx.operands.is_empty() {
                return Err(entry.bad("the instruction takes no operands"));
            }
            call::ret(entry)
        }
        "call" => call::lower(entry, ptx),
        "brx" => branch_index(entry, ptx),
        "exit" => alone(entry, Op::Exit, &ptx),
        "trap" => alone(entry, Op::Trap, &ptx),
        "brkpt" => alone(entry, Op::Nop, &ptx),
        // Every access is performed in program order before the next one begins.
        "membar" | "fence" => {
            const PROXIES: [&str; 8] = [
                "proxy",
                "alias",
                "async",
                "async::generic",
                "mbarrier_init",
                "sync_restrict::shared::cta",
                "sync_restrict::shared::cluster",
                "async::global",
            ];
            ptx.take_hints();
            while PROXIES.iter().any(|proxy| ptx.take(proxy)) {}
            ptx.take_map(Space::parse);
            ptx.take_hints();
            alone(entry, Op::Nop, &ptx)
        }
        "nanosleep" => {
            ptx.take("u32");
            ptx.end()?;
            let [ns] = ptx.operands else {
                return Err(entry.bad("`nanosleep` takes one operand"));
            };
            let ns = entry.source(ns, Type::U32, false)?;
            entry.out.emit(Op::Sleep { ns })
        }
        "activemask" => {
            ptx.take("b32");
            ptx.end()?;
            let [d] = ptx.operands else {
                return Err(entry.bad("`activemask` takes one operand"));
            };
            let d = entry.destination(d, Type::B32, false)?;
            entry.out.emit(Op::ActiveMask { d })
        }
        "shfl" => shuffle(entry, ptx),
        "vote" => vote(entry, ptx),
        _ => barrier(entry, ptx),
    }
}

/// `brx.idx index, targets;` as a chain of comparisons and branches. An index without a
/// target is undefined behaviour; here it ends the kernel.
fn branch_index(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    ptx.take("uni");
    let known = ptx.take("idx");
    ptx.end()?;
    let ([index, Operand::Name(list)], true) = (ptx.operands, known) else {
        return Err(ptx.unsupported());
    };
    let targets = entry.blocks.iter().rev().find_map(|b| b.targets.get(list));
    let Some(Targets::Labels(labels)) = targets else {
        return Err(entry.bad(&format!("`{list}` is no list of targets")));
    };
    let labels = labels.clone();
    let index = entry.source(index, Type::U32, false)?;
    let equal = compare_integer("eq", Type::U32).ok_or_else(|| ptx.unsupported())?;
    let (slot, both) = (entry.out.temp_predicate()?, entry.out.temp_predicate()?);
    let guard = entry.out.guard;
    for (number, label) in labels.into_iter().enumerate() {
        entry.out.guard = guard;
        let number = entry.out.pool(number as u64);
        entry.out.test(equal, (index, number), Some(slot))?;
        // Lanes that the guard excludes have not compared, and must not follow an old result.
        let (a, b) = (Pred::Reg { slot, not: false }, guard);
        entry.out.guard = Pred::Always;
        let op = Logic::And;
        entry.out.emit(Op::Logic { op, d: both, a, b })?;
        entry.out.guard = Pred::Reg {
            slot: both,
            not: false,
        };
        branch(entry, label)?;
    }
    entry.out.guard = guard;
    entry.out.emit(Op::Trap)
}

/// A branch to a label. The place of the label is known at the end of the block.
fn branch<'a>(entry: &mut Builder<'a, '_>, label: &'a str) -> Result<(), LoadError> {
    let fixup = (entry.out.here(), label, entry.out.line);
    entry.out.emit(Op::Branch { target: 0 })?;
    entry.top().fixups.push(fixup);
    Ok(())
}

fn alone(entry: &mut Builder<'_, '_>, op: Op, ptx: &Instruction<'_, '_>) -> Result<(), LoadError> {
    ptx.end()?;
    if !ptx.operands.is_empty() {
        return Err(entry.bad("the instruction takes no operands"));
    }
    entry.out.emit(op)
}

/// `shfl.sync.mode.b32 d|p, a, b, c, members`.
fn shuffle(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let sync = ptx.take("sync");
    let known = ptx.take("b32");
    let mode = ptx.take_map(|m| {
        Some(match m {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return None,
        })
    });
    ptx.end()?;
    let (true, Some(mode)) = (known, mode) else {
        return Err(ptx.unsupported());
    };
    let (d, a, b, c, members) = match ptx.operands {
        [d, a, b, c, members] if sync => (d, a, b, c, Some(members)),
        [d, a, b, c] if !sync => (d, a, b, c, None),
        _ => return Err(entry.bad("`shfl` takes another number of operands")),
    };
    let (d, p) = entry.pair(d)?;
    let p = p.map_or(Ok(None), |p| entry.predicate_destination(p))?;
    let d = entry.destination(&Operand::Name(d), Type::B32, false)?;
    let a = entry.source(a, Type::B32, false)?;
    let b = entry.source(b, Type::B32, false)?;
    let c = entry.source(c, Type::B32, false)?;
    let members = exchange_members(entry, members)?;
    entry.out.emit(Op::Shuffle(Box::new(ShuffleArgs {
        mode,
        d,
        p,
        a,
        b,
        c,
        members,
    })))
}

/// `vote.sync.mode.type d, {!}p, members`.
fn vote(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let sync = ptx.take("sync");
    let vote = ptx.take_map(|m| {
        Some(match m {
            "all" => Vote::All,
            "any" => Vote::Any,
            "uni" => Vote::Uniform,
            "ballot" => Vote::Ballot,
            _ => return None,
        })
    });
    let ty = if vote == Some(Vote::Ballot) {
        "b32"
    } else {
        "pred"
    };
    let known = ptx.take(ty);
    ptx.end()?;
    let (true, Some(vote)) = (known, vote) else {
        return Err(ptx.unsupported());
    };
    let (d, p, members) = match ptx.operands {
        [d, p, members] if sync => (d, p, Some(members)),
        [d, p] if !sync => (d, p, None),
        _ => return Err(entry.bad("`vote` takes another number of operands")),
    };
    let d = vote_destination(entry, d, vote == Vote::Ballot)?;
    let p = entry.predicate(p)?;
    let members = exchange_members(entry, members)?;
    entry.out.emit(Op::Vote {
        vote,
        d,
        p,
        members,
    })
}

/// The members of an exchange; without `.sync` the lanes that execute it (PTX ISA before 6.0).
fn exchange_members(
    entry: &mut Builder<'_, '_>,
    members: Option<&Operand<'_>>,
) -> Result<Src, LoadError> {
    if let Some(members) = members {
        return entry.source(members, Type::B32, false);
    }
    let slot = entry.out.temp_word()?;
    let d = Dst::Word(slot);
    entry.out.emit(Op::ActiveMask { d })?;
    Ok(Src::Word(slot))
}

fn vote_destination(
    entry: &mut Builder<'_, '_>,
    d: &Operand<'_>,
    number: bool,
) -> Result<VoteDst, LoadError> {
    if number {
        return Ok(VoteDst::Reg(entry.destination(d, Type::B32, false)?));
    }
    let Operand::Name(name) = d else {
        return Err(entry.bad("expected a predicate"));
    };
    Ok(VoteDst::Pred(entry.predicate_register(name)?))
}

/// `bar` and `barrier`. A barrier counts warps, so the aligned and the unaligned form are the
/// same: late lanes of a warp join those that wait.
fn barrier(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    ptx.take("cta");
    ptx.take("aligned");
    if ptx.take("cluster") {
        return transfer::cluster_barrier(entry, ptx);
    }
    if ptx.take("warp") {
        let known = ptx.take("sync");
        ptx.end()?;
        let ([members], true) = (ptx.operands, known) else {
            return Err(ptx.unsupported());
        };
        let members = entry.source(members, Type::B32, false)?;
        return entry.out.emit(Op::WarpSync { members });
    }
    let (sync, arrive, red) = (ptx.take("sync"), ptx.take("arrive"), ptx.take("red"));
    let mut reduce: Option<(Vote, VoteDst, Pred)> = None;
    let rest = match (sync, arrive, red) {
        (true, false, false) | (false, true, false) => ptx.operands,
        (false, false, true) => {
            let vote = ptx.take_map(|m| {
                Some(match m {
                    "popc" => Vote::Count,
                    "and" => Vote::All,
                    "or" => Vote::Any,
                    _ => return None,
                })
            });
            let vote = vote.ok_or_else(|| ptx.unsupported())?;
            let ty = if vote == Vote::Count { "u32" } else { "pred" };
            if !ptx.take(ty) {
                return Err(ptx.unsupported());
            }
            let [d, rest @ .., p] = ptx.operands else {
                return Err(entry.bad("the barrier takes more operands"));
            };
            let d = vote_destination(entry, d, vote == Vote::Count)?;
            reduce = Some((vote, d, entry.predicate(p)?));
            rest
        }
        _ => return Err(ptx.unsupported()),
    };
    ptx.end()?;
    let (id, threads): (Src, Option<Src>) = match rest {
        [id] if !arrive => (entry.source(id, Type::U32, false)?, None),
        [id, threads] => {
            let id = entry.source(id, Type::U32, false)?;
            (id, Some(entry.source(threads, Type::U32, false)?))
        }
        _ => return Err(entry.bad("the barrier takes another number of operands")),
    };
    let wait = !arrive;
    entry.out.emit(Op::Barrier(Box::new(BarrierArgs {
        id,
        threads,
        wait,
        cluster: false,
        reduce,
    })))
}
