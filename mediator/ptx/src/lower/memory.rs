//! Loads, stores and atomics.

use super::super::code::{Access, AtomOp, Dst, Op, Src};
use super::super::error::LoadError;
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Space, Type};
use super::Builder;
use super::{Meaning, Variables};

impl<'a> Builder<'a, '_> {
    pub(super) fn memory(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        if matches!(head, "prefetch" | "prefetchu") {
            // A hint without a visible effect; its address is not even checked, as on hardware.
            return self.emit(Op::Nop);
        }
        let ty = modifiers.ty()?;
        if matches!(head, "atom" | "red") {
            return self.atomic(head == "atom", ty, modifiers, operands);
        }
        let count = if modifiers.take("v2") {
            2
        } else if modifiers.take("v4") {
            4
        } else {
            1
        };
        let space = modifiers.take_map(Space::parse).unwrap_or(Space::Generic);
        let hint = modifiers.take("L2::cache_hint");
        modifiers.take_hints();
        modifiers.end()?;
        let operands = without_hint(operands, hint);
        let known = ty.kind != Kind::Pred && !(ty.float() && ty.bits == 16);
        if !known || ty.bytes() * count > 16 {
            return Err(modifiers.unsupported());
        }
        let (registers, address) = match (head, operands) {
            ("ld" | "ldu", [d, address]) => (d, address),
            ("st", [address, s]) => (s, address),
            _ => return Err(self.bad("the access takes two operands")),
        };
        let registers = match (registers, count) {
            (Operand::Vector(parts), n) if parts.len() == n as usize => parts.as_slice(),
            (Operand::Vector(_), _) => return Err(self.bad("vector of another length")),
            (one, 1) => std::slice::from_ref(one),
            _ => return Err(self.bad("expected a vector")),
        };
        // CAST: at most 8 and 4.
        let shape = (ty.bytes() as u8, count as u8);
        if head == "st" {
            if space == Space::Const {
                return Err(modifiers.unsupported());
            }
            let mut s = [Src::Pool(0); 4];
            for (slot, operand) in s.iter_mut().zip(registers) {
                *slot = self.source(operand, ty, true)?;
            }
            let access = self.access(space, shape, address)?;
            if access.space == Space::Param {
                // An entry's own parameters are read-only.
                return Err(modifiers.unsupported());
            }
            return self.emit(Op::Store { access, s });
        }
        let access = self.access(space, shape, address)?;
        let mut d = [Dst::None; 4];
        for (slot, operand) in d.iter_mut().zip(registers) {
            *slot = self.destination(operand, ty, true)?;
        }
        let signed = ty.signed();
        self.emit(Op::Load { access, signed, d })
    }

    /// `[register+offset]`, `[variable+offset]`, `[number]`.
    pub(super) fn access(
        &mut self,
        mut space: Space,
        (bytes, count): (u8, u8),
        operand: &Operand<'a>,
    ) -> Result<Access, LoadError> {
        let Operand::Address(base, offset) = operand else {
            return Err(self.bad("expected an address"));
        };
        let mut offset = *offset;
        let base = match base {
            None => self.pool(0),
            Some(name) => match self.variable_named(name) {
                Some(variable) => {
                    let (mut at, source) = self.variable(variable, offset)?;
                    if let Variables::Frame { param: true, .. } = variable {
                        at = Space::Param;
                        if space == Space::Param {
                            space = Space::Local;
                            at = Space::Local;
                        }
                    }
                    if at != space {
                        return Err(self.bad(&format!("`{name}` is in another state space")));
                    }
                    offset = 0;
                    source
                }
                None => match self.find(name) {
                    Some(Meaning::Register { slot, bits: 64 }) => Src::Double(slot),
                    Some(Meaning::Register { slot, bits: 32 }) => Src::Word(slot),
                    Some(_) => return Err(self.bad("an address has 32 or 64 bits")),
                    None => return Err(self.unknown(name)),
                },
            },
        };
        // The parameters of a function are in its frame, which is local memory.
        if space == Space::Param && self.in_function() {
            space = Space::Local;
        }
        Ok(Access {
            space,
            bytes,
            count,
            base,
            offset,
        })
    }

    fn atomic(
        &mut self,
        returns: bool,
        ty: Type,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let space = modifiers.take_map(Space::parse).unwrap_or(Space::Generic);
        let op = modifiers.take_map(|m| {
            Some(match (m, ty.kind, ty.bits) {
                ("add", Kind::Float, 32 | 64) => AtomOp::AddFloat,
                ("add", Kind::Unsigned | Kind::Signed, 32 | 64) => AtomOp::Add,
                ("min", Kind::Unsigned, 32 | 64) => AtomOp::MinU,
                ("max", Kind::Unsigned, 32 | 64) => AtomOp::MaxU,
                ("min", Kind::Signed, 32 | 64) => AtomOp::MinS,
                ("max", Kind::Signed, 32 | 64) => AtomOp::MaxS,
                ("and", Kind::Bits, 32 | 64) => AtomOp::And,
                ("or", Kind::Bits, 32 | 64) => AtomOp::Or,
                ("xor", Kind::Bits, 32 | 64) => AtomOp::Xor,
                ("exch", Kind::Bits, 32 | 64) => AtomOp::Exchange,
                ("cas", Kind::Bits, 32 | 64) => AtomOp::CompareAndSwap,
                ("cas", Kind::Bits, 16) => AtomOp::CompareAndSwap,
                ("exch", Kind::Bits, 16) => AtomOp::Exchange,
                ("add", Kind::Float, 16) => AtomOp::AddHalf,
                ("add", Kind::Brain, 16) => AtomOp::AddBrain,
                ("add", Kind::HalfPair, _) => AtomOp::AddHalfPair,
                ("add", Kind::BrainPair, _) => AtomOp::AddBrainPair,
                ("inc", Kind::Unsigned, 32) => AtomOp::Inc,
                ("dec", Kind::Unsigned, 32) => AtomOp::Dec,
                _ => return None,
            })
        });
        let op = op.ok_or_else(|| modifiers.unsupported())?;
        if ty.bits == 16 || ty.float_pair() {
            modifiers.take("noftz");
        }
        let hint = modifiers.take("L2::cache_hint");
        modifiers.take_hints();
        modifiers.end()?;
        let operands = without_hint(operands, hint);
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Err(modifiers.unsupported());
        }
        let (d, rest) = match operands.split_first() {
            Some((d, rest)) if returns => (self.destination(d, ty, false)?, rest),
            _ => (Dst::None, operands),
        };
        let access =
            |builder: &mut Self, address| builder.access(space, (ty.bytes() as u8, 1), address);
        let (access, b, c) = match rest {
            [address, b] if op != AtomOp::CompareAndSwap => (
                access(self, address)?,
                self.source(b, ty, false)?,
                Src::Pool(0),
            ),
            [address, b, c] if op == AtomOp::CompareAndSwap => {
                let access = access(self, address)?;
                let b = self.source(b, ty, false)?;
                (access, b, self.source(c, ty, false)?)
            }
            _ => return Err(self.bad("the atomic takes another number of operands")),
        };
        self.emit(Op::Atom {
            access,
            op,
            d,
            b,
            c,
        })
    }
}

/// The operands without the cache policy, which stands last.
fn without_hint<'o, 'a>(operands: &'o [Operand<'a>], hint: bool) -> &'o [Operand<'a>] {
    match operands {
        [rest @ .., _] if hint => rest,
        all => all,
    }
}
