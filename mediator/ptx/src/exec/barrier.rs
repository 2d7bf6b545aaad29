//! The barriers of a block.

use super::super::LANES;
use super::super::code::{BarrierArgs, Code, Op, Pred, Vote, VoteDst};
use super::ExecError;
use super::warp::{State, Wait, Warp};

/// The number of the cluster's barrier, after those that a program can name.
const CLUSTER_BARRIER: u8 = 16;

/// Warps that arrived at each barrier without waiting (`bar.arrive`). The last one is the
/// cluster's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Barriers([u32; CLUSTER_BARRIER as usize + 1]);

impl Barriers {
    /// `bar.arrive`.
    pub(super) fn arrive(&mut self, id: u8) {
        if let Some(arrived) = self.0.get_mut(usize::from(id)) {
            *arrived = arrived.saturating_add(1);
        }
    }

    /// Opens barriers with all required warps arrived. A barrier without a thread count does not
    /// wait for warps that have ended.
    pub(super) fn open(&mut self, code: &Code, warps: &mut [Warp]) -> bool {
        let mut opened = false;
        let alive = warps.iter().filter(|w| w.state != State::Done).count();
        for number in 0..self.0.len() {
            let waiting = warps.iter().filter_map(|w| match w.state {
                State::Barrier { id, threads } if usize::from(id) == number => Some(threads),
                _ => None,
            });
            let (count, threads) = waiting.fold((0, 0), |(n, most), t| (n + 1, t.max(most)));
            if count == 0 {
                continue;
            }
            let needed = match threads {
                0 => alive,
                // CAST: a u32 fits a usize here.
                some => some.div_ceil(LANES as u32) as usize,
            };
            // CAST: as above.
            if count + self.0[number] as usize >= needed {
                self.0[number] = 0;
                release(code, warps, number);
                opened = true;
            }
        }
        opened
    }
}

/// Barrier id and number of threads (0 for all); the lanes agree on them, so the first speaks.
pub(super) fn operands(
    code: &Code,
    block: [u32; 3],
    warp: &Warp,
    args: &BarrierArgs,
    exec: u32,
    line: u32,
) -> Result<(u8, u32), ExecError> {
    if args.cluster {
        return Ok((CLUSTER_BARRIER, 0));
    }
    let first = exec.trailing_zeros() as usize % LANES;
    let mut buffer = [0; LANES];
    let id = warp.words(code, args.id, &mut buffer)[first];
    let threads = args
        .threads
        .map_or(0, |t| warp.words(code, t, &mut buffer)[first]);
    match u8::try_from(id) {
        Ok(small) if small < CLUSTER_BARRIER => Ok((small, threads)),
        _ => Err(ExecError::BarrierId { id, block, line }),
    }
}

/// Lets the warps at a barrier go on, with the result of `bar.red` where that was it.
fn release(code: &Code, warps: &mut [Warp], number: usize) {
    let here = |wait: Wait| matches!(wait, Wait::Barrier { id, .. } if usize::from(id) == number);
    let (mut yes, mut all) = (0, 0);
    let at_barrier =
        |warp: &Warp| matches!(warp.state, State::Barrier { id, .. } if usize::from(id) == number);
    for warp in warps.iter().filter(|w| at_barrier(w)) {
        for group in warp.groups.iter().filter(|g| here(g.wait)) {
            if let Some(reduce) = reduction(code, group.pc) {
                yes += (warp.pred(reduce.2) & group.mask).count_ones();
                all += group.mask.count_ones();
            }
        }
    }
    for warp in warps.iter_mut().filter(|w| at_barrier(w)) {
        warp.state = State::Ready;
        for at in 0..warp.groups.len() {
            let group = warp.groups[at];
            if !here(group.wait) {
                continue;
            }
            if let Some((vote, d, _)) = reduction(code, group.pc) {
                let holds = match vote {
                    Vote::All => yes == all,
                    _ => yes > 0,
                };
                match d {
                    VoteDst::Reg(d) => warp.write_words(d, &[yes; LANES], group.mask),
                    VoteDst::Pred(d) => {
                        warp.write_pred(d, if holds { u32::MAX } else { 0 }, group.mask);
                    }
                }
            }
            warp.groups[at].pc += 1;
            warp.groups[at].wait = Wait::No;
        }
    }
}

/// The reduction of the barrier at `pc`.
fn reduction(code: &Code, pc: u32) -> Option<(Vote, VoteDst, Pred)> {
    match code.insts.get(pc as usize).map(|inst| &inst.op) {
        Some(Op::Barrier(args)) => args.reduce,
        _ => None,
    }
}
