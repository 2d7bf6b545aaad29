//! Video instructions (PTX ISA 9.7.16): parts of words, saturated, merged or summed.

/// A part of a word that is an operand or receives the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Word,
    Byte(u8),
    Half(u8),
}

/// What is computed of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Calculation {
    Add,
    Subtract,
    AbsoluteDifference,
    Minimum,
    Maximum,
    ShiftLeft,
    ShiftRight,
    Average,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

pub(crate) const CALCULATIONS: [Calculation; 14] = [
    Calculation::Add,
    Calculation::Subtract,
    Calculation::AbsoluteDifference,
    Calculation::Minimum,
    Calculation::Maximum,
    Calculation::ShiftLeft,
    Calculation::ShiftRight,
    Calculation::Average,
    Calculation::Equal,
    Calculation::NotEqual,
    Calculation::Less,
    Calculation::LessOrEqual,
    Calculation::Greater,
    Calculation::GreaterOrEqual,
];

/// How the result and the third operand are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Second {
    None,
    Add,
    Minimum,
    Maximum,
    /// The result goes into this part of the third operand.
    Insert(Part),
}

/// An instruction: packed into an immediate operand of its kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Video {
    pub(crate) calculation: Calculation,
    /// Of destination, first and second source.
    pub(crate) signed: [bool; 3],
    pub(crate) parts: [Part; 2],
    pub(crate) saturate: bool,
    pub(crate) second: Second,
    /// Numbers in a word: 1, 2 or 4.
    pub(crate) count: u8,
    /// Shift amounts are cut to five bits instead of clamped to 32.
    pub(crate) wrap: bool,
    /// Parts of a packed instruction that are written, as bits.
    pub(crate) mask: u8,
    /// Selectors of the bytes or halves of the two sources, as `prmt` takes them.
    pub(crate) selectors: [u16; 2],
}

const fn part_bits(part: Part) -> u64 {
    match part {
        Part::Word => 0,
        Part::Byte(n) => 1 + (n & 3) as u64,
        Part::Half(n) => 5 + (n & 1) as u64,
    }
}

const fn part_of(bits: u64) -> Part {
    match bits & 7 {
        0 | 7 => Part::Word,
        n @ 1..=4 => Part::Byte((n - 1) as u8),
        n => Part::Half((n - 5) as u8),
    }
}

impl Video {
    pub(crate) fn to_bits(self) -> u64 {
        let second = match self.second {
            Second::None => 0,
            Second::Add => 1,
            Second::Minimum => 2,
            Second::Maximum => 3,
            Second::Insert(part) => 4 | part_bits(part) << 3,
        };
        let flag = |set: bool, at: u32| u64::from(set) << at;
        self.calculation as u64
            | flag(self.signed[0], 4)
            | flag(self.signed[1], 5)
            | flag(self.signed[2], 6)
            | part_bits(self.parts[0]) << 7
            | part_bits(self.parts[1]) << 10
            | flag(self.saturate, 13)
            | second << 14
            | u64::from(self.count) << 20
            | flag(self.wrap, 23)
            | u64::from(self.mask & 15) << 24
            | u64::from(self.selectors[0]) << 28
            | u64::from(self.selectors[1]) << 44
    }

    fn from_bits(bits: u64) -> Video {
        let flag = |at: u32| (bits >> at) & 1 == 1;
        let second = match (bits >> 14) & 7 {
            0 => Second::None,
            1 => Second::Add,
            2 => Second::Minimum,
            3 => Second::Maximum,
            _ => Second::Insert(part_of(bits >> 17)),
        };
        Video {
            calculation: CALCULATIONS[(bits & 15) as usize % CALCULATIONS.len()],
            signed: [flag(4), flag(5), flag(6)],
            parts: [part_of(bits >> 7), part_of(bits >> 10)],
            saturate: flag(13),
            second,
            count: ((bits >> 20) & 7) as u8,
            wrap: flag(23),
            mask: ((bits >> 24) & 15) as u8,
            selectors: [(bits >> 28) as u16, (bits >> 44) as u16],
        }
    }

    fn calculate(self, a: i64, b: i64) -> i64 {
        // CAST: amounts are at most 32.
        let amount = if self.wrap { b & 31 } else { b.clamp(0, 32) } as u32;
        match self.calculation {
            Calculation::Add => a + b,
            Calculation::Subtract => a - b,
            Calculation::AbsoluteDifference => (a - b).abs(),
            Calculation::Minimum => a.min(b),
            Calculation::Maximum => a.max(b),
            Calculation::ShiftLeft => a << amount,
            Calculation::ShiftRight => a >> amount,
            Calculation::Average => {
                // Halves are rounded away from zero.
                let sum = a + b;
                (sum + i64::from(sum >= 0)) >> 1
            }
            Calculation::Equal => i64::from(a == b),
            Calculation::NotEqual => i64::from(a != b),
            Calculation::Less => i64::from(a < b),
            Calculation::LessOrEqual => i64::from(a <= b),
            Calculation::Greater => i64::from(a > b),
            Calculation::GreaterOrEqual => i64::from(a >= b),
        }
    }
}

/// The low `bits` of a word as a number.
fn number(word: u32, bits: u32, signed: bool) -> i64 {
    let up = word << (32 - bits);
    if signed {
        i64::from(up.cast_signed() >> (32 - bits))
    } else {
        i64::from(up >> (32 - bits))
    }
}

fn extract(word: u32, part: Part, signed: bool) -> i64 {
    match part {
        Part::Word => number(word, 32, signed),
        Part::Byte(n) => number(word >> (8 * n), 8, signed),
        Part::Half(n) => number(word >> (16 * n), 16, signed),
    }
}

fn clamp(value: i64, bits: u32, signed: bool) -> i64 {
    let (least, most) = if signed {
        (-1i64 << (bits - 1), (1i64 << (bits - 1)) - 1)
    } else {
        (0, (1i64 << bits) - 1)
    };
    value.clamp(least, most)
}

fn join(second: Second, value: i64, c: u32, signed: bool) -> u32 {
    let c_number = number(c, 32, signed);
    match second {
        Second::None => value as u32,
        Second::Add => value.wrapping_add(c_number) as u32,
        Second::Minimum => value.min(c_number) as u32,
        Second::Maximum => value.max(c_number) as u32,
        Second::Insert(part) => {
            let (shift, mask) = match part {
                Part::Word => (0, u32::MAX),
                Part::Byte(n) => (8 * u32::from(n), 0xff),
                Part::Half(n) => (16 * u32::from(n), 0xffff),
            };
            (c & !(mask << shift)) | ((value as u32 & mask) << shift)
        }
    }
}

/// Runs an instruction on a lane.
pub(crate) fn video(a: u64, b: u64, c: u64, control: u64) -> u64 {
    let video = Video::from_bits(control);
    let (a, b, c) = (a as u32, b as u32, c as u32);
    if video.count > 1 {
        return packed(video, a, b, c).into();
    }
    let x = extract(a, video.parts[0], video.signed[1]);
    let y = extract(b, video.parts[1], video.signed[2]);
    let mut value = video.calculate(x, y);
    if video.saturate {
        let bits = match video.second {
            Second::Insert(Part::Byte(_)) => 8,
            Second::Insert(Part::Half(_)) => 16,
            _ => 32,
        };
        value = clamp(value, bits, video.signed[0]);
    } else {
        value = number(value as u32, 32, video.signed[0]);
    }
    join(video.second, value, c, video.signed[0]).into()
}

fn packed(video: Video, a: u32, b: u32, c: u32) -> u32 {
    let count = u32::from(video.count.clamp(2, 4));
    let bits = 32 / count;
    let both = u64::from(b) << 32 | u64::from(a);
    let pick = |selector: u16, at: u32| {
        // A selector names one of the parts of both words.
        let choice = u32::from(selector) >> (4 * at) & (2 * count - 1);
        (both >> (bits * choice)) as u32
    };
    let mut sum = number(c, 32, video.signed[0]);
    let mut out = c;
    for at in (0..count).filter(|at| video.mask >> at & 1 == 1) {
        let x = number(pick(video.selectors[0], at), bits, video.signed[1]);
        let y = number(pick(video.selectors[1], at), bits, video.signed[2]);
        let mut value = video.calculate(x, y);
        if video.saturate {
            value = clamp(value, bits, video.signed[0]);
        }
        let mask = u32::MAX >> (32 - bits);
        let kept = value as u32 & mask;
        out = (out & !(mask << (bits * at))) | (kept << (bits * at));
        sum = sum.wrapping_add(number(kept, bits, video.signed[0]));
    }
    if video.second == Second::Add {
        sum as u32
    } else {
        out
    }
}

/// `vmad`: a product of parts plus `c` (and 1), with their signs, shifted and saturated.
pub(crate) fn multiply_add(a: u64, b: u64, c: u64, control: u64) -> u64 {
    let flag = |at: u32| (control >> at) & 1 == 1;
    let (signed_a, signed_b, saturate, negative_product, negative_c, plus_one) =
        (flag(0), flag(1), flag(2), flag(3), flag(4), flag(5));
    let shift = (control >> 6) & 31;
    let signed = signed_a || signed_b || negative_product || negative_c;
    let x = i128::from(extract(a as u32, part_of(control >> 11), signed_a));
    let y = i128::from(extract(b as u32, part_of(control >> 14), signed_b));
    let z = i128::from(number(c as u32, 32, signed));
    let product = if negative_product { -(x * y) } else { x * y };
    let sum = product + if negative_c { -z } else { z } + i128::from(plus_one);
    let shifted = sum >> shift;
    let value = if saturate {
        let (least, most) = if signed {
            (i32::MIN.into(), i32::MAX.into())
        } else {
            (0, u32::MAX.into())
        };
        shifted.clamp(least, most)
    } else {
        shifted
    };
    u64::from(value as u32)
}

/// The control word of [`multiply_add`].
pub(crate) fn multiply_control(flags: [bool; 6], shift: u64, parts: [Part; 2]) -> u64 {
    let bits = flags
        .iter()
        .rev()
        .fold(0, |bits, flag| bits << 1 | u64::from(*flag));
    bits | shift << 6 | part_bits(parts[0]) << 11 | part_bits(parts[1]) << 14
}
