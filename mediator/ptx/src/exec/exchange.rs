//! What lanes of a warp exchange: shuffles, votes, and values that they compare or reduce.

use super::super::LANES;
use super::super::code::{
    Code, Dst, MatchArgs, Pred, ReduceArgs, Shuffle, ShuffleArgs, Src, Vote, VoteDst,
};
use super::access::apply32;
use super::warp::{Warp, lanes};

/// A vote: kind, result, predicate, members.
type VoteArgs = (Vote, VoteDst, Pred, Src);

/// Whether a lane that some lane of `exec` names as a member is alive but not in the group.
pub(super) fn missing(code: &Code, warp: &Warp, members: Src, exec: u32, group: u32) -> bool {
    let mut buffer = [0; LANES];
    let members = warp.words(code, members, &mut buffer);
    let all = lanes(exec).fold(0, |all, lane| all | members[lane]);
    all & warp.live & !group != 0
}

/// `shfl.sync` (PTX ISA, its pseudo-code). The ISA leaves the value of an absent lane
/// undefined; here it is 0, never data of another lane.
pub(super) fn shuffle(code: &Code, warp: &mut Warp, args: &ShuffleArgs, exec: u32) {
    let (mut x, mut y, mut z) = ([0; LANES], [0; LANES], [0; LANES]);
    let a = warp.words(code, args.a, &mut x);
    let b = warp.words(code, args.b, &mut y);
    let c = warp.words(code, args.c, &mut z);
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
pub(super) fn vote(code: &Code, warp: &mut Warp, (vote, d, p, members): VoteArgs, exec: u32) {
    let mut buffer = [0; LANES];
    let members = *warp.words(code, members, &mut buffer);
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

/// Each lane gets the members with its value, or with `all` every member if all are equal.
#[inline(never)]
pub(super) fn matched(code: &Code, warp: &mut Warp, args: &MatchArgs, exec: u32) {
    let (mut x, mut y) = ([0; LANES], [0; LANES]);
    let values = *warp.doubles(code, args.a, &mut x);
    let members = *warp.words(code, args.members, &mut y);
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
pub(super) fn reduced(code: &Code, warp: &mut Warp, args: &ReduceArgs, exec: u32) {
    let (mut x, mut y) = ([0; LANES], [0; LANES]);
    let values = *warp.words(code, args.a, &mut x);
    let members = *warp.words(code, args.members, &mut y);
    let mut out = [0; LANES];
    for lane in lanes(exec) {
        let among = lanes(members[lane] & exec).map(|other| values[other]);
        out[lane] = among.reduce(|a, b| apply32(args.op, a, b, 0)).unwrap_or(0);
    }
    warp.write_words(args.d, &out, exec);
}

#[inline(never)]
pub(super) fn elect(
    code: &Code,
    warp: &mut Warp,
    (d, p, members): (Dst, Option<u16>, Src),
    exec: u32,
) {
    let mut buffer = [0; LANES];
    let members = *warp.words(code, members, &mut buffer);
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
