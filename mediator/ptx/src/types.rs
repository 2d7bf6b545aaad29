//! Types, state spaces and the modifiers of an opcode.

use super::ops::exact::{self, Format};

/// Fundamental type kinds (PTX ISA 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unsigned,
    Signed,
    Bits,
    Float,
    /// `bf16`.
    Brain,
    /// `f16x2`: two in 32 bits.
    HalfPair,
    /// `bf16x2`.
    BrainPair,
    /// `tf32`: a single with a fraction of 10 bits.
    Tensor,
    /// `e4m3x2` and `e5m2x2`: two in 16 bits.
    FourPair,
    FivePair,
    /// `u16x2` and `s16x2`.
    UnsignedPair,
    SignedPair,
    Pred,
}

/// A fundamental type: kind and width in bits (1 for a predicate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) kind: Kind,
    pub(super) bits: u8,
}

impl Type {
    pub(super) const U32: Type = Type::new(Kind::Unsigned, 32);
    pub(super) const U64: Type = Type::new(Kind::Unsigned, 64);
    pub(super) const F16: Type = Type::new(Kind::Float, 16);
    pub(super) const BF16: Type = Type::new(Kind::Brain, 16);
    pub(super) const F32: Type = Type::new(Kind::Float, 32);
    pub(super) const B32: Type = Type::new(Kind::Bits, 32);

    pub(super) const fn new(kind: Kind, bits: u8) -> Type {
        Type { kind, bits }
    }

    /// `u32`, `b64`, `pred`, …; 128-bit, packed and tensor types are unknown here.
    pub(super) fn parse(text: &str) -> Option<Type> {
        let (kind, bits) = match text {
            "pred" => (Kind::Pred, 1),
            "u8" => (Kind::Unsigned, 8),
            "u16" => (Kind::Unsigned, 16),
            "u32" => (Kind::Unsigned, 32),
            "u64" => (Kind::Unsigned, 64),
            "s8" => (Kind::Signed, 8),
            "s16" => (Kind::Signed, 16),
            "s32" => (Kind::Signed, 32),
            "s64" => (Kind::Signed, 64),
            "b8" => (Kind::Bits, 8),
            "b16" => (Kind::Bits, 16),
            "b32" => (Kind::Bits, 32),
            "b64" => (Kind::Bits, 64),
            "f16" => (Kind::Float, 16),
            "f32" => (Kind::Float, 32),
            "f64" => (Kind::Float, 64),
            "bf16" => (Kind::Brain, 16),
            "f16x2" => (Kind::HalfPair, 32),
            "bf16x2" => (Kind::BrainPair, 32),
            "tf32" => (Kind::Tensor, 32),
            "e4m3x2" => (Kind::FourPair, 16),
            "e5m2x2" => (Kind::FivePair, 16),
            "u16x2" => (Kind::UnsignedPair, 32),
            "s16x2" => (Kind::SignedPair, 32),
            _ => return None,
        };
        Some(Type { kind, bits })
    }

    pub(super) fn bytes(self) -> u32 {
        u32::from(self.bits).div_ceil(8)
    }

    pub(super) fn signed(self) -> bool {
        self.kind == Kind::Signed
    }

    /// One floating-point number.
    pub(super) fn float(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Brain | Kind::Tensor)
    }

    /// Two floating-point numbers of 16 bits.
    pub(super) fn float_pair(self) -> bool {
        matches!(self.kind, Kind::HalfPair | Kind::BrainPair)
    }

    /// One element of a pair.
    pub(super) fn element(self) -> Type {
        match self.kind {
            Kind::HalfPair => Type::F16,
            Kind::BrainPair => Type::BF16,
            _ => self,
        }
    }

    /// The format of a floating-point type, or of its elements.
    pub(super) fn format(self) -> Option<Format> {
        Some(match (self.kind, self.bits) {
            (Kind::Float, 16) | (Kind::HalfPair, _) => exact::F16,
            (Kind::Float, 32) => exact::F32,
            (Kind::Float, 64) => exact::F64,
            (Kind::Brain | Kind::BrainPair, _) => exact::BF16,
            (Kind::Tensor, _) => exact::TF32,
            (Kind::FourPair, _) => exact::E4M3,
            (Kind::FivePair, _) => exact::E5M2,
            _ => return None,
        })
    }

    pub(super) fn integer(self) -> bool {
        matches!(self.kind, Kind::Signed | Kind::Unsigned)
    }
}

/// State spaces (PTX ISA 5.1); `Generic` is an address without a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    Param,
}

impl Space {
    pub(super) fn parse(text: &str) -> Option<Space> {
        Some(match text {
            "global" => Space::Global,
            "const" => Space::Const,
            // A cluster has one block.
            "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
            "local" => Space::Local,
            "param" | "param::entry" | "param::func" => Space::Param,
            _ => return None,
        })
    }
}
