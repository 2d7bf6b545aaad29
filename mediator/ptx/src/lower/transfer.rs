//! Asynchronous copies and their barriers, and instructions without an effect on this machine.

use super::super::code::{
    Access, AtomOp, BarrierArgs, CopyArgs, Dst, Logic, Op, Pred, Special, Src,
};
use super::super::error::LoadError;
use super::super::kernels::{compare_integer, extension};
use super::super::lexer::Literal;
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Space, Type};
use super::Builder;

impl<'a> Builder<'a, '_> {
    /// `cp.async`; a copy is complete as soon as it is executed.
    pub(super) fn copy_async(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let known = modifiers.take("async");
        let waits = modifiers.take("commit_group")
            || modifiers.take("wait_group")
            || modifiers.take("wait_all");
        if known && waits {
            modifiers.end()?;
            return self.emit(Op::Nop);
        }
        if known && modifiers.take("mbarrier") {
            let arrives = modifiers.take("arrive");
            let counted = modifiers.take("noinc");
            modifiers.take("b64");
            let space = modifiers.take_map(Space::parse).unwrap_or(Space::Generic);
            modifiers.end()?;
            let ([address], true) = (operands, arrives) else {
                return Err(modifiers.unsupported());
            };
            // Without `noinc` one more arrival is expected, and happens.
            let access = self.access(space, (8, 1), address)?;
            let one = self.pool(1);
            return if counted {
                self.update(access, AtomOp::BarrierArrive, Dst::None, one)
            } else {
                self.emit(Op::Nop)
            };
        }
        let cached = modifiers.take("ca") || modifiers.take("cg");
        let to = modifiers.take_map(Space::parse);
        let from = modifiers.take_map(Space::parse);
        let hint = modifiers.take("L2::cache_hint");
        modifiers.take_hints();
        modifiers.end()?;
        let spaces = to == Some(Space::Shared) && from == Some(Space::Global);
        let operands = match (operands, hint) {
            ([rest @ .., _], true) => rest,
            (all, _) => all,
        };
        let (to, from, bytes, rest) = match operands {
            [
                to,
                from,
                Operand::Literal(Literal::Int(bytes @ (4 | 8 | 16))),
                rest @ ..,
            ] if rest.len() < 2 && known && cached && spaces => (to, from, *bytes, rest.first()),
            _ => return Err(modifiers.unsupported()),
        };
        let (mut size, mut ignore) = (None, Pred::Never);
        match rest {
            None => {}
            Some(Operand::Name(name)) if self.predicate_register(name).is_ok() => {
                ignore = self.predicate(&Operand::Name(name))?;
            }
            Some(not @ Operand::Not(_)) => ignore = self.predicate(not)?,
            Some(operand) => size = Some(self.source(operand, Type::U32, false)?),
        }
        let to = self.access(Space::Shared, (4, 1), to)?;
        let from = self.access(Space::Global, (4, 1), from)?;
        self.emit(Op::CopyAsync(Box::new(CopyArgs {
            to,
            from,
            // CAST: at most 16.
            bytes: bytes as u32,
            size,
            ignore,
        })))
    }

    fn update(&mut self, access: Access, op: AtomOp, d: Dst, b: Src) -> Result<(), LoadError> {
        let c = self.pool(0);
        self.emit(Op::Atom {
            access,
            op,
            d,
            b,
            c,
        })
    }

    /// `mbarrier`, on an object in shared memory.
    pub(super) fn memory_barrier(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
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
        let kind = KINDS.into_iter().find(|kind| modifiers.take(kind));
        let kind = kind.ok_or_else(|| modifiers.unsupported())?;
        let expect = kind == "arrive" && modifiers.take("expect_tx");
        let parity = modifiers.take("parity");
        modifiers.take("noComplete");
        modifiers.take_hints();
        modifiers.take("b64");
        let space = modifiers.take_map(Space::parse).unwrap_or(Space::Generic);
        modifiers.end()?;
        let one = |builder: &mut Self, operand: Option<&Operand<'a>>| match operand {
            Some(operand) => builder.source(operand, Type::U32, false),
            None => Ok(builder.pool(1)),
        };
        match (kind, operands) {
            ("init", [address, count]) => {
                let access = self.access(space, (8, 1), address)?;
                let count = self.source(count, Type::U32, false)?;
                self.update(access, AtomOp::BarrierInit, Dst::None, count)
            }
            ("inval", [address]) => {
                let access = self.access(space, (8, 1), address)?;
                let zero = self.pool(0);
                self.update(access, AtomOp::Exchange, Dst::None, zero)
            }
            ("expect_tx" | "complete_tx", [address, bytes]) => {
                let access = self.access(space, (8, 1), address)?;
                let bytes = self.source(bytes, Type::U32, false)?;
                let op = match kind {
                    "expect_tx" => AtomOp::BarrierExpect,
                    _ => AtomOp::BarrierComplete,
                };
                self.update(access, op, Dst::None, bytes)
            }
            ("arrive" | "arrive_drop", [d, address, rest @ ..]) if rest.len() < 2 => {
                let access = self.access(space, (8, 1), address)?;
                let d = self.destination(d, Type::U64, false)?;
                let mut count = one(self, rest.first())?;
                if expect {
                    self.update(access, AtomOp::BarrierExpect, Dst::None, count)?;
                    count = self.pool(1);
                }
                let op = match kind {
                    "arrive" => AtomOp::BarrierArrive,
                    _ => AtomOp::BarrierDrop,
                };
                self.update(access, op, d, count)
            }
            ("test_wait" | "try_wait", [Operand::Name(p), address, state, rest @ ..])
                if rest.len() < 2 =>
            {
                let p = self.predicate_destination(p)?;
                let access = self.access(space, (8, 1), address)?;
                let now = self.temp_double()?;
                let d = [Dst::Double(now), Dst::None, Dst::None, Dst::None];
                let signed = false;
                self.emit(Op::Load { access, signed, d })?;
                let before = if parity {
                    // The parity of a phase, at the bit of the phase.
                    let parity = self.source(state, Type::U32, false)?;
                    let slot = self.temp_double()?;
                    let shift = self.integer_kernel("shl", Type::new(Kind::Bits, 64))?;
                    let by = self.pool(63);
                    self.emit_kernel(shift, Dst::Double(slot), &[parity, by])?;
                    Src::Double(slot)
                } else {
                    self.source(state, Type::U64, false)?
                };
                let slot = self.temp_double()?;
                let differ = self.integer_kernel("xor", Type::new(Kind::Bits, 64))?;
                self.emit_kernel(differ, Dst::Double(slot), &[Src::Double(now), before])?;
                let ty = Type::new(Kind::Signed, 64);
                let less = compare_integer("lt", ty).ok_or_else(|| modifiers.unsupported())?;
                let zero = self.pool(0);
                let logic = (Logic::Move, Pred::Always);
                self.emit_compare(less, (Src::Double(slot), zero), (p, None), logic)
            }
            ("pending_count", [d, state]) => {
                let d = self.destination(d, Type::U32, false)?;
                let state = self.source(state, Type::U64, false)?;
                let mask = self.pool((1 << 20) - 1);
                let and = self.integer_kernel("and", Type::new(Kind::Bits, 64))?;
                self.emit_kernel(and, d, &[state, mask])
            }
            _ => Err(modifiers.unsupported()),
        }
    }

    /// Hints, and instructions about clusters of one block.
    pub(super) fn machine(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        match head {
            // What a launch waits for has ended before it begins.
            "griddepcontrol" | "setmaxnreg" | "pmevent" | "applypriority" | "discard" => {
                self.emit(Op::Nop)
            }
            "createpolicy" => {
                let Some(d) = operands.first() else {
                    return Err(self.bad("`createpolicy` takes operands"));
                };
                let d = self.destination(d, Type::U64, false)?;
                let zero = self.pool(0);
                self.emit_kernel(extension(Type::U64), d, &[zero])
            }
            "mapa" | "getctarank" => {
                let ty = modifiers.ty()?;
                modifiers.take_map(Space::parse);
                modifiers.end()?;
                let (d, a) = match operands {
                    [d, a, _] if head == "mapa" => (d, Some(a)),
                    [d, _] if head == "getctarank" => (d, None),
                    _ => return Err(self.bad("the instruction takes another number of operands")),
                };
                let to = if head == "mapa" { ty } else { Type::U32 };
                let d = self.destination(d, to, false)?;
                let a = match a {
                    Some(a) => self.source(a, ty, false)?,
                    None => self.pool(0),
                };
                self.emit_kernel(extension(Type::U64), d, &[a])
            }
            "alloca" => {
                let ty = modifiers.ty()?;
                modifiers.end()?;
                let (d, bytes) = match operands {
                    [d, bytes] | [d, bytes, _] => (d, bytes),
                    _ => return Err(self.bad("`alloca` takes two operands")),
                };
                let d = self.destination(d, ty, false)?;
                let bytes = self.source(bytes, ty, false)?;
                self.grow_frame();
                self.emit(Op::Grow { d, bytes })
            }
            "stacksave" => {
                let ty = modifiers.ty()?;
                modifiers.end()?;
                let [d] = operands else {
                    return Err(self.bad("`stacksave` takes one operand"));
                };
                let d = self.destination(d, ty, false)?;
                self.emit(Op::Special {
                    d,
                    which: Special::NextFrame,
                })
            }
            // What was allocated since stays until the function returns.
            _ => self.emit(Op::Nop),
        }
    }

    /// `barrier.cluster`: the cluster has this block only, so waiting is a barrier of the block.
    pub(super) fn cluster_barrier(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let arrive = modifiers.take("arrive");
        let wait = modifiers.take("wait");
        modifiers.take_hints();
        modifiers.end()?;
        if arrive == wait || !operands.is_empty() {
            return Err(modifiers.unsupported());
        }
        if arrive {
            return self.emit(Op::Nop);
        }
        let id = self.pool(0);
        self.emit(Op::Barrier(Box::new(BarrierArgs {
            id,
            threads: None,
            wait: true,
            cluster: true,
            reduce: None,
        })))
    }
}
