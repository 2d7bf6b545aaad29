//! Values that lanes compare or reduce: `match.sync`, `redux.sync`, `elect.sync`.

use super::super::LANES;
use super::super::code::{Dst, MatchArgs, ReduceArgs, Src};
use super::super::memory::{DeviceMemory, Timer};
use super::access::apply32;
use super::block::Block;
use super::warp::{Warp, lanes};

impl<M: DeviceMemory, T: Timer> Block<'_, M, T> {
    /// Each lane gets the members with its value, or with `all` every member if all are equal.
    #[inline(never)]
    pub(super) fn matched(&mut self, warp: &mut Warp, args: &MatchArgs, exec: u32) {
        let (mut x, mut y) = ([0; LANES], [0; LANES]);
        let values = *warp.doubles(self.code, args.a, &mut x);
        let members = *warp.words(self.code, args.members, &mut y);
        let mut out = [0; LANES];
        let mut truth = 0;
        for lane in lanes(exec) {
            let among = members[lane] & exec;
            let equal = lanes(among).filter(|other| values[*other] == values[lane]);
            let equal = equal.fold(0, |mask, other| mask | (1 << other));
            let all = equal == among;
            truth |= u32::from(all) << lane;
            out[lane] = if args.all && !all { 0 } else { equal };
        }
        warp.write_words(args.d, &out, exec);
        if let Some(p) = args.p {
            warp.write_pred(p, truth, exec);
        }
    }

    #[inline(never)]
    pub(super) fn reduced(&mut self, warp: &mut Warp, args: &ReduceArgs, exec: u32) {
        let (mut x, mut y) = ([0; LANES], [0; LANES]);
        let values = *warp.words(self.code, args.a, &mut x);
        let members = *warp.words(self.code, args.members, &mut y);
        let mut out = [0; LANES];
        for lane in lanes(exec) {
            let among = lanes(members[lane] & exec).map(|other| values[other]);
            out[lane] = among.reduce(|a, b| apply32(args.op, a, b, 0)).unwrap_or(0);
        }
        warp.write_words(args.d, &out, exec);
    }

    #[inline(never)]
    pub(super) fn elect(
        &mut self,
        warp: &mut Warp,
        (d, p, members): (Dst, Option<u16>, Src),
        exec: u32,
    ) {
        let mut buffer = [0; LANES];
        let members = *warp.words(self.code, members, &mut buffer);
        let mut out = [0; LANES];
        let mut truth = 0;
        for lane in lanes(exec) {
            out[lane] = (members[lane] & exec).trailing_zeros();
            truth |= u32::from(out[lane] as usize == lane) << lane;
        }
        warp.write_words(d, &out, exec);
        if let Some(p) = p {
            warp.write_pred(p, truth, exec);
        }
    }
}
