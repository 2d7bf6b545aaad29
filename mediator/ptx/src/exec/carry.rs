//! Extended-precision sums: the carry flag of a lane (PTX ISA 9.7.2).

use super::super::LANES;
use super::super::code::{CarryArgs, Code};
use super::warp::Warp;

/// `add.cc`, `addc`, `sub.cc`, `subc`. The flag of a difference is the carry of `a + !b + 1`,
/// so it is 0 after a borrow: compilers read it by `addc`.
pub(super) fn carry(code: &Code, warp: &mut Warp, args: &CarryArgs, exec: u32) {
    let (mut x, mut y) = ([0; LANES], [0; LANES]);
    let a = warp.doubles(code, args.a, &mut x);
    let b = warp.doubles(code, args.b, &mut y);
    let mut out = [0; LANES];
    let mut flags = 0;
    for lane in 0..LANES {
        let carry = args.reads && (warp.carry >> lane) & 1 == 1;
        let (mut a, mut b) = (a[lane], b[lane]);
        if !args.wide {
            // In the upper half a 32-bit sum carries where a 64-bit one does.
            (a, b) = (a << 32, b << 32);
        }
        let one = if args.wide { 1 } else { 1 << 32 };
        let step = if carry != (args.subtract && args.reads) {
            one
        } else {
            0
        };
        let (sum, f, g) = if args.subtract {
            let (first, f) = a.overflowing_sub(b);
            let (sum, g) = first.overflowing_sub(step);
            (sum, f, g)
        } else {
            let (first, f) = a.overflowing_add(b);
            let (sum, g) = first.overflowing_add(step);
            (sum, f, g)
        };
        out[lane] = if args.wide { sum } else { sum >> 32 };
        flags |= u32::from((f | g) != args.subtract) << lane;
    }
    warp.write_doubles(args.d, &out, exec);
    if args.writes {
        warp.carry = (warp.carry & !exec) | (flags & exec);
    }
}
