//! Communication between lanes and warps: shuffles, votes, barriers.

use super::super::LANES;
use super::super::code::{BarrierArgs, Pred, Shuffle, ShuffleArgs, Src, Vote, VoteDst};
use super::super::memory::{DeviceMemory, Timer};
use super::ExecError;
use super::block::Block;
use super::warp::{State, Wait, Warp, lanes};

/// A vote: kind, result, predicate, members.
type VoteArgs = (Vote, VoteDst, Pred, Src);

/// The number of the cluster's barrier, after those that a program can name.
const CLUSTER_BARRIER: u8 = 16;

impl<M: DeviceMemory, T: Timer> Block<'_, M, T> {
    /// Whether a lane that some lane of `exec` names as a member is alive but not in the group.
    pub(super) fn missing(&self, warp: &Warp, members: Src, exec: u32, group: u32) -> bool {
        let mut buffer = [0; LANES];
        let members = warp.words(self.code, members, &mut buffer);
        let all = lanes(exec).fold(0, |all, lane| all | members[lane]);
        all & warp.live & !group != 0
    }

    /// `shfl.sync` (PTX ISA, its pseudo-code). The ISA leaves the value of an absent lane
    /// undefined; here it is 0, never data of another lane.
    pub(super) fn shuffle(&mut self, warp: &mut Warp, args: &ShuffleArgs, exec: u32) {
        let (mut x, mut y, mut z) = ([0; LANES], [0; LANES], [0; LANES]);
        let a = warp.words(self.code, args.a, &mut x);
        let b = warp.words(self.code, args.b, &mut y);
        let c = warp.words(self.code, args.c, &mut z);
        let mut out = [0; LANES];
        let mut inside = 0;
        for lane in 0..LANES as u32 {
            let at = lane as usize;
            let (offset, clamp) = (b[at] & 31, c[at] & 31);
            let segment = (c[at] >> 8) & 31;
            let max = (lane & segment) | (clamp & !segment);
            let min = lane & segment;
            let (from, valid) = match args.mode {
                // Wrapping sends what is below lane 0 far above 31; it is then invalid.
                Shuffle::Up => {
                    let from = lane.wrapping_sub(offset);
                    (from, from <= lane && from >= max)
                }
                Shuffle::Down => (lane + offset, lane + offset <= max),
                Shuffle::Butterfly => (lane ^ offset, lane ^ offset <= max),
                Shuffle::Index => {
                    let from = min | (offset & !segment);
                    (from, from <= max)
                }
            };
            let from = if valid { from } else { lane };
            let from = from as usize % LANES;
            out[at] = if (exec >> from) & 1 == 1 { a[from] } else { 0 };
            inside |= u32::from(valid) << lane;
        }
        warp.write_words(args.d, &out, exec);
        if let Some(p) = args.p {
            warp.write_pred(p, inside, exec);
        }
    }

    /// `vote.sync`: each lane sees the votes of the executing lanes it names.
    pub(super) fn vote(&mut self, warp: &mut Warp, (vote, d, p, members): VoteArgs, exec: u32) {
        let mut buffer = [0; LANES];
        let members = *warp.words(self.code, members, &mut buffer);
        let votes = warp.pred(p);
        let mut number = [0; LANES];
        let mut truth = 0;
        for lane in lanes(exec) {
            let voters = members[lane] & exec;
            let yes = votes & voters;
            number[lane] = yes;
            let holds = match vote {
                Vote::All => yes == voters,
                Vote::Any => yes != 0,
                Vote::Uniform => yes == voters || yes == 0,
                Vote::Ballot | Vote::Count => false,
            };
            truth |= u32::from(holds) << lane;
        }
        match d {
            VoteDst::Reg(d) => warp.write_words(d, &number, exec),
            VoteDst::Pred(d) => warp.write_pred(d, truth, exec),
        }
    }

    /// Barrier id and number of threads (0 for all); the lanes agree on them, so the first speaks.
    pub(super) fn barrier_operands(
        &self,
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
        let id = warp.words(self.code, args.id, &mut buffer)[first];
        let threads = args
            .threads
            .map_or(0, |t| warp.words(self.code, t, &mut buffer)[first]);
        match u8::try_from(id) {
            Ok(small) if small < CLUSTER_BARRIER => Ok((small, threads)),
            _ => Err(ExecError::BarrierId {
                id,
                block: self.index,
                line,
            }),
        }
    }

    /// `bar.arrive`.
    pub(super) fn arrive(&mut self, id: u8) {
        if let Some(arrived) = self.barriers.get_mut(usize::from(id)) {
            *arrived = arrived.saturating_add(1);
        }
    }

    /// Opens barriers with all required warps arrived. A barrier without a thread count does not
    /// wait for warps that have ended.
    pub(super) fn open_barriers(&mut self, warps: &mut [Warp]) -> bool {
        let mut opened = false;
        let alive = warps.iter().filter(|w| w.state != State::Done).count();
        for number in 0..self.barriers.len() {
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
            if count + self.barriers[number] as usize >= needed {
                self.barriers[number] = 0;
                self.release(warps, number);
                opened = true;
            }
        }
        opened
    }

    /// Lets the warps at a barrier go on, with the result of `bar.red` where that was it.
    fn release(&self, warps: &mut [Warp], number: usize) {
        let code = self.code;
        let here =
            |wait: Wait| matches!(wait, Wait::Barrier { id, .. } if usize::from(id) == number);
        let (mut yes, mut all) = (0, 0);
        let at_barrier = |warp: &Warp| matches!(warp.state, State::Barrier { id, .. } if usize::from(id) == number);
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
}

/// The reduction of the barrier at `pc`.
fn reduction(code: &super::super::code::Code, pc: u32) -> Option<(Vote, VoteDst, Pred)> {
    match code.insts.get(pc as usize).map(|inst| &inst.op) {
        Some(super::super::code::Op::Barrier(args)) => args.reduce,
        _ => None,
    }
}
