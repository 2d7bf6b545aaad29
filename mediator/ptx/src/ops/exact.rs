//! Floating point of any format and rounding, by integers (PTX ISA 9.7.3 to 9.7.5): what the host
//! has no instruction for. A value is exact until it is rounded once.

/// How a result is rounded (PTX ISA 5.3.2); `Away` rounds halves away from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
    Away,
}

/// A binary format: bits of precision, and the exponents of the least and the greatest normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    precision: u32,
    least: i32,
    greatest: i32,
    /// Whether the greatest exponent has numbers, and all ones is the only NaN (e4m3).
    finite: bool,
    /// Zeros below the fraction (tf32 is kept in 32 bits).
    unused: u32,
}

const fn format(precision: u32, greatest: i32) -> Format {
    Format {
        precision,
        least: 1 - greatest,
        greatest,
        finite: false,
        unused: 0,
    }
}

pub(crate) const F16: Format = format(11, 15);
pub(crate) const BF16: Format = format(8, 127);
pub(crate) const F32: Format = format(24, 127);
pub(crate) const F64: Format = format(53, 1023);
pub(crate) const E5M2: Format = format(3, 15);
pub(crate) const E4M3: Format = Format {
    precision: 4,
    least: -6,
    greatest: 8,
    finite: true,
    unused: 0,
};
pub(crate) const TF32: Format = Format {
    unused: 13,
    ..format(11, 127)
};

/// A sign and a magnitude.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    negative: bool,
    size: Size,
}

/// `Finite(m, e)` is m * 2^e with m not 0. If digits were lost, bit 0 of `m` is 1 and at least 60
/// bits are above it.
#[derive(Debug, Clone, Copy)]
enum Size {
    Zero,
    Finite(u128, i32),
    Infinite,
    Nan,
}

const NAN: Value = Value {
    negative: false,
    size: Size::Nan,
};

/// The bit to which a magnitude is shifted before it is added.
const TOP: u32 = 120;

impl Format {
    fn width(self) -> u32 {
        let exponents = (self.greatest - self.least + 3).cast_unsigned() - u32::from(self.finite);
        self.precision + self.unused + exponents.next_power_of_two().trailing_zeros()
    }

    fn fraction(self) -> u64 {
        (1 << (self.precision - 1)) - 1
    }

    /// The exponent field above that of normal numbers.
    fn special(self) -> u64 {
        (self.greatest - self.least + 2).cast_unsigned().into()
    }

    pub(crate) fn decode(self, bits: u64) -> Value {
        let negative = (bits >> (self.width() - 1)) & 1 == 1;
        let bits = (bits & ((1 << (self.width() - 1)) - 1)) >> self.unused;
        let (field, fraction) = (bits >> (self.precision - 1), bits & self.fraction());
        let unit = self.least - (self.precision - 1).cast_signed();
        let special = if self.finite {
            bits == (1 << (self.width() - 1)) - 1
        } else {
            field == self.special()
        };
        let size = if special {
            if fraction == 0 {
                Size::Infinite
            } else {
                Size::Nan
            }
        } else if field == 0 {
            match fraction {
                0 => Size::Zero,
                _ => Size::Finite(fraction.into(), unit),
            }
        } else {
            let whole = fraction | (1 << (self.precision - 1));
            // CAST: a field has at most 11 bits.
            Size::Finite(whole.into(), unit + field as i32 - 1)
        };
        Value { negative, size }
    }

    fn sign(self, negative: bool) -> u64 {
        u64::from(negative) << (self.width() - 1)
    }

    fn nan(self) -> u64 {
        match self.width() {
            64 => 0xfff8_0000_0000_0000,
            _ => ((1 << (self.width() - 1)) - 1) >> self.unused << self.unused,
        }
    }

    /// The greatest finite number's bits, without sign.
    fn most(self) -> u64 {
        let all = (self.special() << (self.precision - 1)) - 1;
        if self.finite {
            (1 << (self.width() - 1)) - 2
        } else {
            all << self.unused
        }
    }

    fn infinity(self) -> u64 {
        self.special() << (self.precision - 1) << self.unused
    }

    /// Rounds once. `clamp` gives the greatest number instead of infinity.
    pub(crate) fn encode(self, value: Value, mode: Mode, clamp: bool) -> u64 {
        let sign = self.sign(value.negative);
        let (magnitude, exponent) = match value.size {
            Size::Nan => return self.nan(),
            Size::Infinite if clamp || self.finite => return sign | self.most(),
            Size::Infinite => return sign | self.infinity(),
            Size::Zero => return sign,
            Size::Finite(m, e) => (m, e),
        };
        let top = 127 - magnitude.leading_zeros().cast_signed() + exponent;
        let unit = top.max(self.least) - (self.precision - 1).cast_signed();
        let shift = unit - exponent;
        let (mut kept, rest, half) = if shift <= 0 {
            // The magnitude has less bits than the format.
            ((magnitude << shift.unsigned_abs().min(127)) as u64, 0, 1)
        } else if shift > 127 {
            (0, 1, 2)
        } else {
            let kept = (magnitude >> shift) as u64;
            (kept, magnitude & ((1 << shift) - 1), 1 << (shift - 1))
        };
        let up = match mode {
            Mode::Nearest => rest > half || (rest == half && kept & 1 == 1),
            Mode::Away => rest >= half,
            Mode::Zero => false,
            Mode::Down => rest != 0 && value.negative,
            Mode::Up => rest != 0 && !value.negative,
        };
        kept += u64::from(up && rest != 0);
        // A carry out of the fraction moves into the exponent by itself.
        let field = (unit + (self.precision - 1).cast_signed() - self.least).cast_unsigned();
        let bits = (u64::from(field) << (self.precision - 1)) + kept;
        if bits << self.unused > self.most() {
            let stays = match mode {
                Mode::Nearest | Mode::Away => false,
                Mode::Zero => true,
                Mode::Down => !value.negative,
                Mode::Up => value.negative,
            };
            return sign
                | if clamp || stays || self.finite {
                    self.most()
                } else {
                    self.infinity()
                };
        }
        sign | (bits << self.unused)
    }
}

/// Shifts right, and keeps in bit 0 whether something was lost.
fn shift_sticky(m: u128, by: u32) -> u128 {
    if by > 127 {
        return u128::from(m != 0);
    }
    (m >> by) | u128::from(m & ((1 << by) - 1) != 0)
}

impl Value {
    pub(crate) fn integer(bits: u64, signed: bool) -> Value {
        let negative = signed && bits >> 63 == 1;
        let magnitude = if negative { bits.wrapping_neg() } else { bits };
        let size = match magnitude {
            0 => Size::Zero,
            m => Size::Finite(m.into(), 0),
        };
        Value { negative, size }
    }

    pub(crate) fn negate(self) -> Value {
        Value {
            negative: !self.negative,
            ..self
        }
    }

    pub(crate) fn is_nan(self) -> bool {
        matches!(self.size, Size::Nan)
    }

    pub(crate) fn times(self, other: Value) -> Value {
        let negative = self.negative != other.negative;
        let size = match (self.size, other.size) {
            (Size::Nan, _) | (_, Size::Nan) => return NAN,
            (Size::Infinite, Size::Zero) | (Size::Zero, Size::Infinite) => return NAN,
            (Size::Infinite, _) | (_, Size::Infinite) => Size::Infinite,
            (Size::Zero, _) | (_, Size::Zero) => Size::Zero,
            // Both have at most 53 bits.
            (Size::Finite(m, e), Size::Finite(n, f)) => Size::Finite(m * n, e + f),
        };
        Value { negative, size }
    }

    pub(crate) fn plus(self, other: Value, mode: Mode) -> Value {
        let (m, e, n, f) = match (self.size, other.size) {
            (Size::Nan, _) | (_, Size::Nan) => return NAN,
            (Size::Infinite, Size::Infinite) if self.negative != other.negative => return NAN,
            (Size::Infinite, _) => return self,
            (_, Size::Infinite) => return other,
            (Size::Zero, Size::Zero) if self.negative == other.negative => return self,
            (Size::Zero, Size::Zero) => return cancelled(mode),
            (Size::Zero, _) => return other,
            (_, Size::Zero) => return self,
            (Size::Finite(m, e), Size::Finite(n, f)) => (m, e, n, f),
        };
        let raise = |m: u128, e: i32| {
            let by = m.leading_zeros() - (127 - TOP);
            (m << by, e - by.cast_signed())
        };
        let ((m, e), (n, f)) = (raise(m, e), raise(n, f));
        // Exponents now order the magnitudes up to a factor of two.
        let base = e.max(f);
        let m = shift_sticky(m, (base - e).cast_unsigned());
        let n = shift_sticky(n, (base - f).cast_unsigned());
        let (negative, sum) = if self.negative == other.negative {
            (self.negative, m + n)
        } else if m >= n {
            (self.negative, m - n)
        } else {
            (other.negative, n - m)
        };
        if sum == 0 {
            return cancelled(mode);
        }
        let size = Size::Finite(sum, base);
        Value { negative, size }
    }

    pub(crate) fn over(self, other: Value) -> Value {
        let negative = self.negative != other.negative;
        let size = match (self.size, other.size) {
            (Size::Nan, _) | (_, Size::Nan) => return NAN,
            (Size::Infinite, Size::Infinite) | (Size::Zero, Size::Zero) => return NAN,
            (Size::Infinite, _) | (_, Size::Zero) => Size::Infinite,
            (Size::Zero, _) | (_, Size::Infinite) => Size::Zero,
            (Size::Finite(m, e), Size::Finite(n, f)) => {
                let by = m.leading_zeros();
                let (m, e) = (m << by, e - by.cast_signed());
                let quotient = (m / n) | u128::from(!m.is_multiple_of(n));
                Size::Finite(quotient, e - f)
            }
        };
        Value { negative, size }
    }

    pub(crate) fn root(self) -> Value {
        match self.size {
            Size::Zero | Size::Nan => self,
            _ if self.negative => NAN,
            Size::Infinite => self,
            Size::Finite(m, e) => {
                let mut by = m.leading_zeros();
                // The exponent must be even.
                by -= u32::from((e - by.cast_signed()) & 1 == 1);
                let (m, e) = (m << by, e - by.cast_signed());
                let root = m.isqrt();
                let size = Size::Finite(root | u128::from(root * root != m), e / 2);
                Value { size, ..self }
            }
        }
    }
}

/// The zero that two opposite numbers make.
fn cancelled(mode: Mode) -> Value {
    Value {
        negative: mode == Mode::Down,
        size: Size::Zero,
    }
}

/// An operation's format, rounding and modifiers, as one number: an operand of its kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Control {
    pub(crate) format: Format,
    /// Of the source, for a conversion.
    pub(crate) from: Format,
    pub(crate) mode: Mode,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) relu: bool,
    /// Two numbers of 16 bits in a register.
    pub(crate) packed: bool,
}

const FORMATS: [Format; 7] = [F16, BF16, F32, F64, E5M2, E4M3, TF32];
const MODES: [Mode; 5] = [Mode::Nearest, Mode::Zero, Mode::Down, Mode::Up, Mode::Away];

impl Control {
    pub(crate) fn new(format: Format) -> Control {
        Control {
            format,
            from: format,
            mode: Mode::Nearest,
            ftz: false,
            sat: false,
            relu: false,
            packed: false,
        }
    }

    pub(crate) fn to_bits(self) -> u64 {
        let index = |format| FORMATS.iter().position(|f| *f == format).unwrap_or(0) as u64;
        let mode = MODES.iter().position(|m| *m == self.mode).unwrap_or(0) as u64;
        let flags = [self.ftz, self.sat, self.relu, self.packed];
        let flags = flags
            .iter()
            .rev()
            .fold(0, |bits, flag| bits << 1 | u64::from(*flag));
        index(self.format) | index(self.from) << 4 | mode << 8 | flags << 12
    }

    fn from_bits(bits: u64) -> Control {
        let format = |at: u64| FORMATS[(bits >> at & 15) as usize % FORMATS.len()];
        let flag = |at: u64| bits >> (12 + at) & 1 == 1;
        Control {
            format: format(0),
            from: format(4),
            mode: MODES[(bits >> 8 & 15) as usize % MODES.len()],
            ftz: flag(0),
            sat: flag(1),
            relu: flag(2),
            packed: flag(3),
        }
    }

    /// A source; subnormals of flushed formats are zeros.
    fn read(self, bits: u64) -> Value {
        let mut value = self.from.decode(bits);
        if self.flushes(self.from)
            && self.from.encode(value, Mode::Zero, false) & self.normal(self.from) == 0
            && !value.is_nan()
        {
            value.size = Size::Zero;
        }
        value
    }

    /// `.ftz` of a conversion is about singles only.
    fn flushes(self, format: Format) -> bool {
        self.ftz && (self.from == self.format || format == F32)
    }

    /// The exponent field.
    fn normal(self, format: Format) -> u64 {
        format.infinity()
    }

    fn write(self, value: Value) -> u64 {
        let mut bits = self.format.encode(value, self.mode, false);
        if self.flushes(self.format) && bits & self.normal(self.format) == 0 {
            bits &= self.format.sign(true);
        }
        if self.sat {
            let one = self
                .format
                .encode(Value::integer(1, false), self.mode, false);
            let negative = bits >> (self.format.width() - 1) & 1 == 1;
            bits = if value.is_nan() || negative {
                0
            } else {
                bits.min(one)
            };
        }
        if self.relu && !value.is_nan() && bits >> (self.format.width() - 1) & 1 == 1 {
            bits = 0;
        }
        bits
    }

    /// Applies `f` to a number, or to both of a register.
    fn each(self, sources: [u64; 3], f: impl Fn([Value; 3]) -> Value) -> u64 {
        let one = |sources: [u64; 3]| self.write(f(sources.map(|bits| self.read(bits))));
        if !self.packed {
            return one(sources);
        }
        one(sources.map(|bits| bits & 0xffff)) | one(sources.map(|bits| bits >> 16 & 0xffff)) << 16
    }
}

pub(crate) fn add(a: u64, b: u64, control: u64) -> u64 {
    let control = Control::from_bits(control);
    control.each([a, b, 0], |[a, b, _]| a.plus(b, control.mode))
}

pub(crate) fn sub(a: u64, b: u64, control: u64) -> u64 {
    let control = Control::from_bits(control);
    control.each([a, b, 0], |[a, b, _]| a.plus(b.negate(), control.mode))
}

pub(crate) fn mul(a: u64, b: u64, control: u64) -> u64 {
    Control::from_bits(control).each([a, b, 0], |[a, b, _]| a.times(b))
}

pub(crate) fn fma(a: u64, b: u64, c: u64, control: u64) -> u64 {
    let control = Control::from_bits(control);
    control.each([a, b, c], |[a, b, c]| a.times(b).plus(c, control.mode))
}

pub(crate) fn div(a: u64, b: u64, control: u64) -> u64 {
    Control::from_bits(control).each([a, b, 0], |[a, b, _]| a.over(b))
}

pub(crate) fn sqrt(a: u64, control: u64) -> u64 {
    Control::from_bits(control).each([a, 0, 0], |[a, _, _]| a.root())
}

/// Between formats.
pub(crate) fn convert(a: u64, control: u64) -> u64 {
    Control::from_bits(control).each([a, 0, 0], |[a, _, _]| a)
}

/// To a format that clamps (`.satfinite`).
pub(crate) fn convert_clamped(a: u64, control: u64) -> u64 {
    let control = Control::from_bits(control);
    let value = control.read(a);
    let bits = control.format.encode(value, control.mode, true);
    let negative = bits >> (control.format.width() - 1) & 1 == 1;
    if control.relu && negative && !value.is_nan() {
        0
    } else {
        bits
    }
}

/// From a signed or an unsigned integer that is extended to 64 bits.
pub(crate) fn from_signed(a: u64, control: u64) -> u64 {
    Control::from_bits(control).write(Value::integer(a, true))
}

/// As [`from_signed`].
pub(crate) fn from_unsigned(a: u64, control: u64) -> u64 {
    Control::from_bits(control).write(Value::integer(a, false))
}

/// A number of a small format as the bits of a double.
pub(crate) fn widen(bits: u64, from: Format) -> u64 {
    F64.encode(from.decode(bits), Mode::Nearest, false)
}
