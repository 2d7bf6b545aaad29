//! Matrix instructions: element types, and where each lane has its elements (PTX ISA 9.7.14).

use super::ops::exact::{self, Format};
use super::ops::float::{from_brain, from_half, to_half};

/// Type of a matrix' elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F16,
    BF16,
    TF32,
    F32,
    F64,
    E4M3,
    E5M2,
    S8,
    U8,
    S4,
    U4,
    B1,
    S32,
}

impl Element {
    pub(super) fn parse(text: &str) -> Option<Element> {
        Some(match text {
            "f16" => Element::F16,
            "bf16" => Element::BF16,
            "tf32" => Element::TF32,
            "f32" => Element::F32,
            "f64" => Element::F64,
            "e4m3" => Element::E4M3,
            "e5m2" => Element::E5M2,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "s4" => Element::S4,
            "u4" => Element::U4,
            "b1" => Element::B1,
            "s32" => Element::S32,
            _ => return None,
        })
    }

    pub(super) fn bits(self) -> u32 {
        match self {
            Element::F64 => 64,
            Element::TF32 | Element::F32 | Element::S32 => 32,
            Element::F16 | Element::BF16 => 16,
            Element::S8 | Element::U8 | Element::E4M3 | Element::E5M2 => 8,
            Element::S4 | Element::U4 => 4,
            Element::B1 => 1,
        }
    }

    /// Whether sums are of integers.
    pub(super) fn integer(self) -> bool {
        matches!(
            self,
            Element::S8 | Element::U8 | Element::S4 | Element::U4 | Element::B1 | Element::S32
        )
    }

    /// The low bits of `raw` as a number; all types fit a double.
    pub(super) fn decode(self, raw: u64) -> f64 {
        let small = |format: Format| f64::from_bits(exact::widen(raw & 0xff, format));
        match self {
            Element::F16 => from_half(raw as u32 & 0xffff).into(),
            Element::BF16 => from_brain(raw as u32 & 0xffff).into(),
            // The lower bits of the fraction are ignored.
            Element::TF32 => f32::from_bits(raw as u32 & !0x1fff).into(),
            Element::F32 => f32::from_bits(raw as u32).into(),
            Element::F64 => f64::from_bits(raw),
            Element::E4M3 => small(exact::E4M3),
            Element::E5M2 => small(exact::E5M2),
            Element::S8 => f64::from(raw as u8 as i8),
            Element::U8 => f64::from(raw as u8),
            Element::S4 => f64::from(((raw as u8) << 4).cast_signed() >> 4),
            Element::U4 => f64::from(raw as u8 & 15),
            Element::B1 => f64::from(raw as u8 & 1),
            Element::S32 => f64::from((raw as u32).cast_signed()),
        }
    }

    /// A sum as an element of an accumulator.
    pub(super) fn encode(self, sum: f64, clamp: bool) -> u64 {
        match self {
            Element::F16 => to_half(sum as f32).into(),
            Element::F64 => sum.to_bits(),
            Element::S32 if clamp => u64::from((sum as i32).cast_unsigned()),
            Element::S32 => u64::from(sum as i64 as u32),
            _ => u64::from((sum as f32).to_bits()),
        }
    }
}

/// Which matrix of `D = A * B + C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
    /// Also D.
    C,
}

/// Rows of A, columns of B, and what is summed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
}

impl Shape {
    pub(super) fn parse(text: &str) -> Option<Shape> {
        let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let size = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=256).contains(n));
        Some(Shape {
            m: size(m)?,
            n: size(n)?,
            k: size(k)?,
        })
    }

    pub(super) fn rows(self, side: Side) -> u32 {
        match side {
            Side::A | Side::C => self.m,
            Side::B => self.k,
        }
    }

    pub(super) fn columns(self, side: Side) -> u32 {
        match side {
            Side::A => self.k,
            Side::B | Side::C => self.n,
        }
    }
}

/// How elements are spread over lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `mma.sync`: in groups of four lanes.
    Groups,
    /// `mma.sync.m8n8k4` of halves: each eight lanes have matrices of their own. Whether A and B
    /// are stored by rows.
    Octets { a_rows: bool, b_rows: bool },
    /// `wmma`: the layout is not visible, here it is the order of the rows.
    Rows,
}

/// One matrix of an instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) side: Side,
    pub(super) element: Element,
    pub(super) shape: Shape,
    pub(super) layout: Layout,
}

impl Part {
    /// Elements of a lane.
    pub(super) fn count(self) -> u32 {
        match self.layout {
            Layout::Octets { .. } if self.side == Side::C => 8,
            Layout::Octets { .. } => 4,
            _ => self.shape.rows(self.side) * self.shape.columns(self.side) / 32,
        }
    }

    /// Registers of a lane.
    pub(super) fn registers(self) -> usize {
        // `wmma` gives halves of A and B eight registers in each shape, and they repeat elements.
        if self.layout == Layout::Rows && self.element == Element::F16 && self.side != Side::C {
            return 8;
        }
        let bits = self.count() * self.element.bits();
        bits.div_ceil(self.element.bits().max(32)) as usize
    }

    /// Row and column of a lane's element `at`.
    pub(super) fn place(self, lane: u32, at: u32) -> (u32, u32) {
        let (group, within) = (lane / 4, lane % 4);
        match (self.layout, self.side) {
            (Layout::Rows, _) => {
                let index = lane * self.count() + at;
                let columns = self.shape.columns(self.side);
                (index / columns, index % columns)
            }
            (Layout::Groups, Side::C) => {
                let lower = if self.shape.m == 16 { 8 * (at / 2) } else { 0 };
                let column = if self.shape.m == 16 { at % 2 } else { at };
                (group + lower, within * 2 + column)
            }
            (Layout::Groups, side) => {
                let each = (32 / self.element.bits()).max(1);
                let (register, inner) = (at / each, at % each);
                let (block, lower) = match (side, self.shape.m) {
                    (Side::A, 16) => (register / 2, 8 * (register % 2)),
                    _ => (register, 0),
                };
                let along = block * 4 * each + within * each + inner;
                if side == Side::A {
                    (group + lower, along)
                } else {
                    (along, group)
                }
            }
            (Layout::Octets { a_rows, b_rows }, side) => {
                let upper = 4 * (lane / 16);
                match side {
                    Side::A if a_rows => (within + upper, at),
                    Side::A => (at + upper, within),
                    Side::B if b_rows => (within, at + upper),
                    Side::B => (at, within + upper),
                    Side::C if self.element == Element::F16 => (within + upper, at),
                    Side::C => {
                        let row = (lane & 1) + (at & 2) + upper;
                        (row, (at & 4) + (lane & 2) + (at & 1))
                    }
                }
            }
        }
    }

    /// Which of the independent products a lane takes part in.
    pub(super) fn octet(self, lane: u32) -> u32 {
        match self.layout {
            Layout::Octets { .. } => lane % 16 / 4,
            _ => 0,
        }
    }
}
