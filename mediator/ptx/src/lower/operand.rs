//! Operands to sources and destinations.

use super::super::code::{Dst, Pred, Special, Src};
use super::super::error::LoadError;
use super::super::function;
use super::super::lexer::Literal;
use super::super::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use super::super::parse::Operand;
use super::super::types::{Space, Type};
use super::Builder;
use super::scope::{Meaning, Variables};

/// Special registers by name, and their width in bits (PTX ISA 10).
fn special(name: &str) -> Option<(Special, u8)> {
    let axis = |c: Option<u8>| match c {
        Some(b'x') => Some(0),
        Some(b'y') => Some(1),
        Some(b'z') => Some(2),
        Some(b'w') => Some(3),
        _ => None,
    };
    if let Some((base, dimension)) = name.split_once('.') {
        let axis = axis(dimension.bytes().next()).filter(|_| dimension.len() == 1)?;
        let which = match base {
            "%tid" => Special::Tid(axis),
            "%ntid" => Special::Ntid(axis),
            "%ctaid" => Special::Ctaid(axis),
            "%nctaid" | "%nclusterid" => Special::Nctaid(axis),
            "%clusterid" => Special::Ctaid(axis),
            "%cluster_ctaid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        };
        return Some((which, 32));
    }
    Some(match name {
        "%laneid" => (Special::LaneId, 32),
        "%warpid" => (Special::WarpId, 32),
        "%nwarpid" => (Special::NWarpId, 32),
        "%smid" => (Special::SmId, 32),
        "%nsmid" => (Special::NSmId, 32),
        "%gridid" => (Special::GridId, 64),
        "%clock" => (Special::Clock, 32),
        "%clock_hi" => (Special::ClockHigh, 32),
        "%clock64" => (Special::Clock, 64),
        "%globaltimer" => (Special::GlobalTimer, 64),
        "%globaltimer_lo" => (Special::GlobalTimer, 32),
        "%globaltimer_hi" => (Special::GlobalTimerHigh, 32),
        "%lanemask_eq" => (Special::LaneMaskEq, 32),
        "%lanemask_le" => (Special::LaneMaskLe, 32),
        "%lanemask_lt" => (Special::LaneMaskLt, 32),
        "%lanemask_ge" => (Special::LaneMaskGe, 32),
        "%lanemask_gt" => (Special::LaneMaskGt, 32),
        "%dynamic_smem_size" => (Special::DynamicSharedBytes, 32),
        "%total_smem_size" | "%aggr_smem_size" => (Special::TotalSharedBytes, 32),
        "%cluster_ctarank"
        | "%reserved_smem_offset_begin"
        | "%reserved_smem_offset_end"
        | "%reserved_smem_offset_cap"
        | "%reserved_smem_offset_0"
        | "%reserved_smem_offset_1" => (Special::Zero, 32),
        "%cluster_nctarank" => (Special::One, 32),
        "%current_graph_exec" => (Special::Zero, 64),
        _ => {
            let counter = |prefix: &str, count: u32, bits| {
                let number = name.strip_prefix(prefix)?;
                let number = number.strip_suffix("_64").unwrap_or(number);
                let known = number.parse::<u32>().is_ok_and(|n| n < count);
                known.then_some((Special::Zero, bits))
            };
            let wide = if name.ends_with("_64") { 64 } else { 32 };
            return counter("%envreg", 32, 32).or_else(|| counter("%pm", 8, wide));
        }
    })
}

impl Builder<'_, '_> {
    pub(super) fn find(&self, name: &str) -> Option<Meaning> {
        let local = self.blocks.iter().rev().find_map(|b| b.names.find(name));
        local.or_else(|| self.globals.find(name)).or_else(|| {
            let index = self.functions.index(name)?;
            Some(Meaning::Variable(Variables::Function(index)))
        })
    }

    pub(super) fn unknown(&self, name: &str) -> LoadError {
        self.bad(&format!("`{name}` is not declared"))
    }

    /// The address of a variable plus `offset`, in its own space.
    pub(super) fn variable(
        &mut self,
        variable: Variables,
        offset: i64,
    ) -> Result<(Space, Src), LoadError> {
        match variable {
            Variables::DynamicShared => {
                let source = self.out.pool(offset.cast_unsigned());
                self.dynamic_shared.push(self.out.code.pool.len() - 1);
                Ok((Space::Shared, source))
            }
            // Global and constant variables move with the module.
            Variables::At(space @ (Space::Global | Space::Const), at) => {
                let base = self.out.read_special(Special::ModuleBase, 64)?;
                let offset = self.out.pool(at.wrapping_add_signed(offset));
                Ok((space, self.out.sum(base, offset)?))
            }
            Variables::At(space, at) => {
                let source = self.out.pool(at.wrapping_add_signed(offset));
                Ok((space, source))
            }
            Variables::Frame { offset: at, .. } => {
                let at = self.out.pool(u64::from(at).wrapping_add_signed(offset));
                if !self.calls.in_function() {
                    return Ok((Space::Local, at));
                }
                let base = self.out.read_special(Special::Frame, 64)?;
                Ok((Space::Local, self.out.sum(base, at)?))
            }
            Variables::Function(index) => {
                self.calls.take_address(index);
                Ok((Space::Generic, self.out.pool(function::address(index))))
            }
        }
    }

    /// What a variable's name means, where it is one.
    pub(super) fn variable_named(&self, name: &str) -> Option<Variables> {
        match self.find(name) {
            Some(Meaning::Variable(variable)) => Some(variable),
            _ => None,
        }
    }

    fn literal(&mut self, literal: Literal, ty: Type) -> Result<Src, LoadError> {
        let value = match (literal, ty.float(), ty.bits) {
            (Literal::Int(v), false, 64) => v,
            (Literal::Int(v), false, bits) => v & ((1 << bits) - 1),
            (Literal::Single(v), true, 32) => u64::from(v),
            (Literal::Single(v), true, 64) => f64::from(f32::from_bits(v)).to_bits(),
            (Literal::Double(v), true, 64) => v,
            (Literal::Double(v), true, 32) => u64::from((f64::from_bits(v) as f32).to_bits()),
            // `mov.b32 %r, 0f3F800000` moves bits.
            (Literal::Single(v), false, 32) => u64::from(v),
            (Literal::Double(v), false, 64) => v,
            _ => return Err(self.bad("literal does not fit the type")),
        };
        Ok(self.out.pool(value))
    }

    /// A source of type `ty`; `wider` permits a register wider than the type (PTX ISA 9.4.1: ld,
    /// st, cvt).
    pub(super) fn source(
        &mut self,
        operand: &Operand<'_>,
        ty: Type,
        wider: bool,
    ) -> Result<Src, LoadError> {
        match operand {
            Operand::Literal(literal) => self.literal(*literal, ty),
            Operand::Name(name) => match self.find(name) {
                Some(Meaning::Register { slot, bits }) => {
                    let fits = bits == ty.bits || (wider && bits > ty.bits);
                    if !fits || bits == 1 {
                        return Err(self.width(name, bits, ty));
                    }
                    Ok(match bits {
                        64 => Src::Double(slot),
                        _ => Src::Word(slot),
                    })
                }
                Some(Meaning::Variable(variable)) if matches!(ty.bits, 32 | 64) => {
                    Ok(self.variable(variable, 0)?.1)
                }
                Some(Meaning::Variable(_)) => Err(self.bad("an address has 32 or 64 bits")),
                None if *name == "WARP_SZ" => Ok(self.out.pool(super::super::LANES as u64)),
                None => match special(name) {
                    // A narrow read cuts a wide register: `mov.u32 %r, %clock64` does not exist.
                    Some((which, bits)) if ty.bits <= 32 || bits == 64 => {
                        self.out.read_special(which, ty.bits)
                    }
                    Some((_, bits)) => Err(self.width(name, bits, ty)),
                    None => Err(self.unknown(name)),
                },
            },
            Operand::Sum(name, offset) => match self.find(name) {
                Some(Meaning::Variable(variable)) if matches!(ty.bits, 32 | 64) => {
                    Ok(self.variable(variable, *offset)?.1)
                }
                Some(Meaning::Register { bits: 64, .. }) if ty.bits == 64 => {
                    let base = self.source(&Operand::Name(name), ty, false)?;
                    let offset = self.out.pool(offset.cast_unsigned());
                    self.out.sum(base, offset)
                }
                _ => Err(self.bad("only an address can have an offset")),
            },
            _ => Err(self.bad("expected a register or a literal")),
        }
    }

    fn width(&self, name: &str, bits: u8, ty: Type) -> LoadError {
        let wanted = ty.bits;
        self.bad(&format!(
            "`{name}` has {bits} bits, the instruction takes {wanted}"
        ))
    }

    /// The destination's register width, or `None` for `_`.
    pub(super) fn width_of(&self, operand: &Operand<'_>) -> Option<u8> {
        match operand {
            Operand::Name(name) => match self.find(name) {
                Some(Meaning::Register { bits, .. }) => Some(bits),
                _ => None,
            },
            _ => None,
        }
    }

    /// A destination of type `ty`.
    pub(super) fn destination(
        &mut self,
        operand: &Operand<'_>,
        ty: Type,
        wider: bool,
    ) -> Result<Dst, LoadError> {
        let Operand::Name(name) = operand else {
            return Err(self.bad("expected a register"));
        };
        match self.find(name) {
            Some(Meaning::Register { slot, bits }) => {
                if bits == 1 || (bits != ty.bits && !(wider && bits > ty.bits)) {
                    return Err(self.width(name, bits, ty));
                }
                Ok(match bits {
                    8 | 16 => Dst::Half(slot),
                    64 => Dst::Double(slot),
                    _ => Dst::Word(slot),
                })
            }
            None if *name == "_" => Ok(Dst::None),
            _ => Err(self.unknown(name)),
        }
    }

    /// The slot of a predicate register.
    pub(super) fn predicate_register(&self, name: &str) -> Result<u16, LoadError> {
        match self.find(name) {
            Some(Meaning::Register { slot, bits: 1 }) => Ok(slot),
            Some(_) => Err(self.bad(&format!("`{name}` is no predicate"))),
            None => Err(self.unknown(name)),
        }
    }

    /// As [`Builder::predicate_register`], `None` for `_`.
    pub(super) fn predicate_destination(&self, name: &str) -> Result<Option<u16>, LoadError> {
        if name == "_" {
            return Ok(None);
        }
        self.predicate_register(name).map(Some)
    }

    /// A predicate as a source: `p`, `!p`, or an integer for a constant.
    pub(super) fn predicate(&self, operand: &Operand<'_>) -> Result<Pred, LoadError> {
        let (name, not) = match operand {
            Operand::Name("%is_explicit_cluster") => return Ok(Pred::Never),
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            Operand::Literal(Literal::Int(0)) => return Ok(Pred::Never),
            Operand::Literal(Literal::Int(_)) => return Ok(Pred::Always),
            _ => return Err(self.bad("expected a predicate")),
        };
        let slot = self.predicate_register(name)?;
        Ok(Pred::Reg { slot, not })
    }

    /// `d|p` or `d`.
    pub(super) fn pair<'o>(
        &self,
        operand: &Operand<'o>,
    ) -> Result<(&'o str, Option<&'o str>), LoadError> {
        match operand {
            Operand::Name(d) => Ok((d, None)),
            Operand::Pair(d, p) => Ok((d, Some(p))),
            _ => Err(self.bad("expected a register")),
        }
    }
}

/// Offset that makes an address of a space generic (PTX ISA, `cvta`); `None` where it already is.
pub(super) fn window(space: Space) -> Option<u64> {
    match space {
        Space::Shared => Some(SHARED_WINDOW),
        Space::Local => Some(LOCAL_WINDOW),
        Space::Param => Some(PARAM_WINDOW),
        Space::Global | Space::Const | Space::Generic => None,
    }
}
