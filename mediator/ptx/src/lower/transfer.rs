//! Asynchronous copies and their barriers, and instructions without an effect on this machine.

use super::super::code::{Access, AtomOp, BarrierArgs, CopyArgs, Dst, Op, Pred, Special, Src};
use super::super::error::LoadError;
use super::super::kernels::{compare_integer, extension};
use super::super::lexer::Literal;
use super::super::parse::Operand;
use super::super::types::{Kind, Space, Type};
use super::emit::Emitter;
use super::instruction::Instruction;
use super::{Builder, memory};

/// `cp.async`; a copy is complete as soon as it is executed.
pub(super) fn copy_async(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let known = ptx.take("async");
    let waits = ptx.take("commit_group") || ptx.take("wait_group") || ptx.take("wait_all");
    if known && waits {
        ptx.end()?;
        return entry.out.emit(Op::Nop);
    }
    if known && ptx.take("mbarrier") {
        let arrives = ptx.take("arrive");
        let counted = ptx.take("noinc");
        ptx.take("b64");
        let space = ptx.take_map(Space::parse).unwrap_or(Space::Generic);
        ptx.end()?;
        let ([address], true) = (ptx.operands, arrives) else {
            return Err(ptx.unsupported());
        };
        // Without `noinc` one more arrival is expected, and happens.
        let access = memory::access(entry, space, (8, 1), address)?;
        let one = entry.out.pool(1);
        return if counted {
            update(
                &mut entry.out,
                access,
                AtomOp::BarrierArrive,
                Dst::None,
                one,
            )
        } else {
            entry.out.emit(Op::Nop)
        };
    }
    let cached = ptx.take("ca") || ptx.take("cg");
    let to = ptx.take_map(Space::parse);
    let from = ptx.take_map(Space::parse);
    ptx.take_cache_hint();
    ptx.end()?;
    let spaces = to == Some(Space::Shared) && from == Some(Space::Global);
    let (to, from, bytes, rest) = match ptx.operands {
        [
            to,
            from,
            Operand::Literal(Literal::Int(bytes @ (4 | 8 | 16))),
            rest @ ..,
        ] if rest.len() < 2 && known && cached && spaces => (to, from, *bytes, rest.first()),
        _ => return Err(ptx.unsupported()),
    };
    let (mut size, mut ignore) = (None, Pred::Never);
    match rest {
        None => {}
        Some(Operand::Name(name)) if entry.predicate_register(name).is_ok() => {
            ignore = entry.predicate(&Operand::Name(name))?;
        }
        Some(not @ Operand::Not(_)) => ignore = entry.predicate(not)?,
        Some(operand) => size = Some(entry.source(operand, Type::U32, false)?),
    }
    let to = memory::access(entry, Space::Shared, (4, 1), to)?;
    let from = memory::access(entry, Space::Global, (4, 1), from)?;
    entry.out.emit(Op::CopyAsync(Box::new(CopyArgs {
        to,
        from,
        // CAST: at most 16.
        bytes: bytes as u32,
        size,
        ignore,
    })))
}

fn update(out: &mut Emitter, access: Access, op: AtomOp, d: Dst, b: Src) -> Result<(), LoadError> {
    let c = out.pool(0);
    out.emit(Op::Atom {
        access,
        op,
        d,
        b,
        c,
    })
}

/// `mbarrier`, on an object in shared memory.
pub(super) fn memory_barrier(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    const KINDS: [&str; 9] = [
        "init",
        "inval",
        "arrive_drop",
        "arrive",
        "test_wait",
        "try_wait",
        "pending_count",
        "expect_tx",
        "complete_tx",
    ];
    let kind = KINDS.into_iter().find(|kind| ptx.take(kind));
    let kind = kind.ok_or_else(|| ptx.unsupported())?;
    let expect = kind == "arrive" && ptx.take("expect_tx");
    let parity = ptx.take("parity");
    ptx.take("noComplete");
    ptx.take_hints();
    ptx.take("b64");
    let space = ptx.take_map(Space::parse).unwrap_or(Space::Generic);
    ptx.end()?;
    let one = |entry: &mut Builder<'_, '_>, operand: Option<&Operand<'_>>| match operand {
        Some(operand) => entry.source(operand, Type::U32, false),
        None => Ok(entry.out.pool(1)),
    };
    match (kind, ptx.operands) {
        ("init", [address, count]) => {
            let access = memory::access(entry, space, (8, 1), address)?;
            let count = entry.source(count, Type::U32, false)?;
            update(
                &mut entry.out,
                access,
                AtomOp::BarrierInit,
                Dst::None,
                count,
            )
        }
        ("inval", [address]) => {
            let access = memory::access(entry, space, (8, 1), address)?;
            let zero = entry.out.pool(0);
            update(&mut entry.out, access, AtomOp::Exchange, Dst::None, zero)
        }
        ("expect_tx" | "complete_tx", [address, bytes]) => {
            let access = memory::access(entry, space, (8, 1), address)?;
            let bytes = entry.source(bytes, Type::U32, false)?;
            let op = match kind {
                "expect_tx" => AtomOp::BarrierExpect,
                _ => AtomOp::BarrierComplete,
            };
            update(&mut entry.out, access, op, Dst::None, bytes)
        }
        ("arrive" | "arrive_drop", [d, address, rest @ ..]) if rest.len() < 2 => {
            let access = memory::access(entry, space, (8, 1), address)?;
            let d = entry.destination(d, Type::U64, false)?;
            let mut count = one(entry, rest.first())?;
            if expect {
                update(
                    &mut entry.out,
                    access,
                    AtomOp::BarrierExpect,
                    Dst::None,
                    count,
                )?;
                count = entry.out.pool(1);
            }
            let op = match kind {
                "arrive" => AtomOp::BarrierArrive,
                _ => AtomOp::BarrierDrop,
            };
            update(&mut entry.out, access, op, d, count)
        }
        ("test_wait" | "try_wait", [Operand::Name(p), address, state, rest @ ..])
            if rest.len() < 2 =>
        {
            let p = entry.predicate_destination(p)?;
            let access = memory::access(entry, space, (8, 1), address)?;
            let now = entry.out.temp_double()?;
            let d = [Dst::Double(now), Dst::None, Dst::None, Dst::None];
            let signed = false;
            entry.out.emit(Op::Load { access, signed, d })?;
            let before = if parity {
                // The parity of a phase, at the bit of the phase.
                let parity = entry.source(state, Type::U32, false)?;
                let shift = entry.out.integer("shl", Type::new(Kind::Bits, 64))?;
                let by = entry.out.pool(63);
                entry.out.helper(shift, &[parity, by])?
            } else {
                entry.source(state, Type::U64, false)?
            };
            let differ = entry.out.integer("xor", Type::new(Kind::Bits, 64))?;
            let difference = entry.out.helper(differ, &[Src::Double(now), before])?;
            let ty = Type::new(Kind::Signed, 64);
            let less = compare_integer("lt", ty).ok_or_else(|| ptx.unsupported())?;
            let zero = entry.out.pool(0);
            entry.out.test(less, (difference, zero), p)
        }
        ("pending_count", [d, state]) => {
            let d = entry.destination(d, Type::U32, false)?;
            let state = entry.source(state, Type::U64, false)?;
            let mask = entry.out.pool((1 << 20) - 1);
            let and = entry.out.integer("and", Type::new(Kind::Bits, 64))?;
            entry.out.kernel(and, d, &[state, mask])
        }
        _ => Err(ptx.unsupported()),
    }
}

/// Hints, and instructions about clusters of one block.
pub(super) fn machine(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    match ptx.head {
        // What a launch waits for has ended before it begins.
        "griddepcontrol" | "setmaxnreg" | "pmevent" | "applypriority" | "discard" => {
            entry.out.emit(Op::Nop)
        }
        "createpolicy" => {
            let Some(d) = ptx.operands.first() else {
                return Err(entry.bad("`createpolicy` takes operands"));
            };
            let d = entry.destination(d, Type::U64, false)?;
            let zero = entry.out.pool(0);
            entry.out.kernel(extension(Type::U64), d, &[zero])
        }
        "mapa" | "getctarank" => {
            let ty = ptx.ty()?;
            ptx.take_map(Space::parse);
            ptx.end()?;
            let (d, a) = match ptx.operands {
                [d, a, _] if ptx.head == "mapa" => (d, Some(a)),
                [d, _] if ptx.head == "getctarank" => (d, None),
                _ => return Err(entry.bad("the instruction takes another number of operands")),
            };
            let to = if ptx.head == "mapa" { ty } else { Type::U32 };
            let d = entry.destination(d, to, false)?;
            let a = match a {
                Some(a) => entry.source(a, ty, false)?,
                None => entry.out.pool(0),
            };
            entry.out.kernel(extension(Type::U64), d, &[a])
        }
        "alloca" => {
            let ty = ptx.ty()?;
            ptx.end()?;
            let (d, bytes) = match ptx.operands {
                [d, bytes] | [d, bytes, _] => (d, bytes),
                _ => return Err(entry.bad("`alloca` takes two operands")),
            };
            let d = entry.destination(d, ty, false)?;
            let bytes = entry.source(bytes, ty, false)?;
            entry.calls.grows = true;
            entry.out.emit(Op::Grow { d, bytes })
        }
        "stacksave" => {
            let ty = ptx.ty()?;
            ptx.end()?;
            let [d] = ptx.operands else {
                return Err(entry.bad("`stacksave` takes one operand"));
            };
            let d = entry.destination(d, ty, false)?;
            entry.out.emit(Op::Special {
                d,
                which: Special::NextFrame,
            })
        }
        // What was allocated since stays until the function returns.
        _ => entry.out.emit(Op::Nop),
    }
}

/// `barrier.cluster`: the cluster has this block only, so waiting is a barrier of the block.
pub(super) fn cluster_barrier(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    let arrive = ptx.take("arrive");
    let wait = ptx.take("wait");
    ptx.take_hints();
    ptx.end()?;
    if arrive == wait || !ptx.operands.is_empty() {
        return Err(ptx.unsupported());
    }
    if arrive {
        return entry.out.emit(Op::Nop);
    }
    let id = entry.out.pool(0);
    entry.out.emit(Op::Barrier(Box::new(BarrierArgs {
        id,
        threads: None,
        wait: true,
        cluster: true,
        reduce: None,
    })))
}
