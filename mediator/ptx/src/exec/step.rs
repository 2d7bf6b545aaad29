//! The interpreter's loop.

use super::super::LANES;
use super::super::code::{CompareArgs, Op, Special};
use super::super::kernels::Kernel;
use super::super::memory::{DeviceMemory, Timer};
use super::ExecError;
use super::block::{Block, MAX_SLEEP_NS};
use super::warp::{Group, State, Turn, Wait, Warp, lanes};
use super::{barrier, call, carry, exchange};

/// Why a group stopped.
enum Stop {
    /// It met or passed others, or split; they are sorted anew.
    Regroup,
    /// Its lanes exited.
    Exit,
    /// Its turn is over.
    Fuel,
    Sleep(u64),
}

impl<M: DeviceMemory, T: Timer> Block<'_, M, T> {
    /// Runs a warp for at most `fuel` operations, or until it sleeps, waits or ends.
    pub(super) fn turn(&mut self, warp: &mut Warp, mut fuel: u32) -> Result<(), ExecError> {
        let start = fuel;
        let result = loop {
            let Some(turn) = warp.choose() else {
                warp.state = self.idle(warp);
                break Ok(());
            };
            let (group, stop) = match self.group(warp, turn, &mut fuel) {
                Ok(stopped) => stopped,
                Err(error) => break Err(error),
            };
            match stop {
                Stop::Exit => continue,
                Stop::Regroup => warp.groups.push(group),
                Stop::Fuel => {
                    warp.groups.push(group);
                    break Ok(());
                }
                Stop::Sleep(until) => {
                    warp.groups.push(group);
                    warp.state = State::Sleeping(until);
                    break Ok(());
                }
            }
        };
        self.executed += u64::from(start - fuel);
        result
    }

    /// What a warp is doing that has no group to run.
    fn idle(&mut self, warp: &Warp) -> State {
        let first = warp.groups.iter().min_by_key(|g| g.pc);
        match first.map(|g| g.wait) {
            Some(Wait::Barrier { id, threads }) => {
                self.outcome.barriers += 1;
                State::Barrier { id, threads }
            }
            // `choose` takes any other group, so none is left.
            _ => State::Done,
        }
    }

    /// Runs one group.
    fn group(
        &mut self,
        warp: &mut Warp,
        turn: Turn,
        fuel: &mut u32,
    ) -> Result<(Group, Stop), ExecError> {
        let Turn {
            group:
                Group {
                    mut pc,
                    mut mask,
                    mut frame,
                    ..
                },
            limit,
            mut forced,
        } = turn;
        let at = |pc, mask, wait, frame| Group {
            pc,
            mask,
            wait,
            frame,
        };
        let code = self.spaces.code;
        loop {
            if pc >= limit {
                return Ok((at(pc, mask, Wait::No, frame), Stop::Regroup));
            }
            if *fuel == 0 {
                return Ok((at(pc, mask, Wait::No, frame), Stop::Fuel));
            }
            let Some(inst) = code.insts.get(pc as usize) else {
                warp.exit(mask);
                return Ok((at(pc, 0, Wait::No, frame), Stop::Exit));
            };
            *fuel -= 1;
            let exec = mask & warp.pred(inst.guard);
            let weight = u64::from(inst.weight);
            self.outcome.warp_instructions += weight;
            if exec == u32::MAX {
                self.outcome.lane_instructions += weight << 5;
            } else {
                self.outcome.lane_instructions += weight * u64::from(exec.count_ones());
                if exec == 0 {
                    pc += 1;
                    continue;
                }
            }
            match &inst.op {
                Op::Words { kernel, d, s } => {
                    let mut out = [0; LANES];
                    let (mut x, mut y, mut z, mut w) =
                        ([0; LANES], [0; LANES], [0; LANES], [0; LANES]);
                    let a = warp.words(code, s[0], &mut x);
                    match kernel {
                        Kernel::One(f) => f(a, &mut out),
                        Kernel::Two(f) => f(a, warp.words(code, s[1], &mut y), &mut out),
                        Kernel::Three(f) => f(
                            a,
                            warp.words(code, s[1], &mut y),
                            warp.words(code, s[2], &mut z),
                            &mut out,
                        ),
                        Kernel::Four(f) => f(
                            a,
                            warp.words(code, s[1], &mut y),
                            warp.words(code, s[2], &mut z),
                            warp.words(code, s[3], &mut w),
                            &mut out,
                        ),
                    }
                    warp.write_words(*d, &out, exec);
                }
                Op::Doubles { kernel, d, s } => {
                    let mut out = [0; LANES];
                    let (mut x, mut y, mut z, mut w) =
                        ([0; LANES], [0; LANES], [0; LANES], [0; LANES]);
                    let a = warp.doubles(code, s[0], &mut x);
                    match kernel {
                        Kernel::One(f) => f(a, &mut out),
                        Kernel::Two(f) => f(a, warp.doubles(code, s[1], &mut y), &mut out),
                        Kernel::Three(f) => f(
                            a,
                            warp.doubles(code, s[1], &mut y),
                            warp.doubles(code, s[2], &mut z),
                            &mut out,
                        ),
                        Kernel::Four(f) => f(
                            a,
                            warp.doubles(code, s[1], &mut y),
                            warp.doubles(code, s[2], &mut z),
                            warp.doubles(code, s[3], &mut w),
                            &mut out,
                        ),
                    }
                    warp.write_doubles(*d, &out, exec);
                }
                Op::CompareWords(args) => {
                    let (mut x, mut y) = ([0; LANES], [0; LANES]);
                    let a = warp.words(code, args.a, &mut x);
                    let b = warp.words(code, args.b, &mut y);
                    let truth = (args.compare.0)(a, b);
                    set_predicates(warp, args, truth, exec);
                }
                Op::CompareDoubles(args) => {
                    let (mut x, mut y) = ([0; LANES], [0; LANES]);
                    let a = warp.doubles(code, args.a, &mut x);
                    let b = warp.doubles(code, args.b, &mut y);
                    let truth = (args.compare.0)(a, b);
                    set_predicates(warp, args, truth, exec);
                }
                Op::Select { d, a, b, p } => {
                    let (mut x, mut y) = ([0; LANES], [0; LANES]);
                    let a = warp.doubles(code, *a, &mut x);
                    let b = warp.doubles(code, *b, &mut y);
                    let p = warp.pred(*p);
                    let mut out = *b;
                    for i in 0..LANES {
                        if (p >> i) & 1 == 1 {
                            out[i] = a[i];
                        }
                    }
                    warp.write_doubles(*d, &out, exec);
                }
                Op::Logic { op, d, a, b } => {
                    let value = op.apply(warp.pred(*a), warp.pred(*b));
                    warp.write_pred(*d, value, exec);
                }
                Op::Special { d, which } => {
                    let value = self.special(warp, *which);
                    warp.write_doubles(*d, &value, exec);
                }
                Op::Carry(args) => carry::carry(code, warp, args, exec),
                Op::Load { access, signed, d } => {
                    self.spaces
                        .load(warp, (access, inst.line, exec), (*signed, d))?;
                }
                Op::Store { access, s } => self.spaces.store(warp, (access, inst.line, exec), s)?,
                Op::Atom {
                    access,
                    op,
                    d,
                    b,
                    c,
                } => self
                    .spaces
                    .atom(warp, (access, inst.line, exec), *op, (*d, *b, *c))?,
                Op::Branch { target } => {
                    if exec != mask {
                        warp.groups.push(at(*target, exec, Wait::No, frame));
                        let rest = at(pc + 1, mask & !exec, Wait::No, frame);
                        return Ok((rest, Stop::Regroup));
                    }
                    pc = *target;
                    if !warp.groups.is_empty() {
                        return Ok((at(pc, mask, Wait::No, frame), Stop::Regroup));
                    }
                    continue;
                }
                Op::Call(site) => {
                    let (called, to, inner) =
                        call::call(&mut self.spaces, warp, (*site, pc + 1), exec, inst.line)?;
                    if called != mask {
                        warp.groups.push(at(to, called, Wait::No, inner));
                        if called != exec {
                            // Lanes that call another function do so next.
                            let other = exec & !called;
                            if mask != exec {
                                let past = at(pc + 1, mask & !exec, Wait::No, frame);
                                warp.groups.push(past);
                            }
                            return Ok((at(pc, other, Wait::No, frame), Stop::Regroup));
                        }
                        return Ok((at(pc + 1, mask & !exec, Wait::No, frame), Stop::Regroup));
                    }
                    (pc, frame) = (to, inner);
                    if !warp.groups.is_empty() {
                        return Ok((at(pc, mask, Wait::No, frame), Stop::Regroup));
                    }
                    warp.frame = frame;
                    continue;
                }
                Op::Return => {
                    let (back, outer) = call::ret(&mut self.spaces, warp, exec);
                    if exec != mask {
                        warp.groups.push(at(back, exec, Wait::No, outer));
                        return Ok((at(pc + 1, mask & !exec, Wait::No, frame), Stop::Regroup));
                    }
                    (pc, frame) = (back, outer);
                    if !warp.groups.is_empty() {
                        return Ok((at(pc, mask, Wait::No, frame), Stop::Regroup));
                    }
                    warp.frame = frame;
                    continue;
                }
                Op::Grow { d, bytes } => {
                    let mut buffer = [0; LANES];
                    let bytes = *warp.words(code, *bytes, &mut buffer);
                    let begin = call::grow(&mut self.spaces, warp, &bytes, exec, inst.line)?;
                    warp.write_doubles(*d, &[begin; LANES], exec);
                }
                Op::Exit => {
                    warp.exit(exec);
                    mask &= !exec;
                    if mask == 0 {
                        return Ok((at(pc, 0, Wait::No, frame), Stop::Exit));
                    }
                }
                Op::Shuffle(args) => {
                    if !forced && exchange::missing(code, warp, args.members, exec, mask) {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    exchange::shuffle(code, warp, args, exec);
                }
                Op::Match(args) => {
                    if !forced && exchange::missing(code, warp, args.members, exec, mask) {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    exchange::matched(code, warp, args, exec);
                }
                Op::Reduce(args) => {
                    if !forced && exchange::missing(code, warp, args.members, exec, mask) {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    exchange::reduced(code, warp, args, exec);
                }
                Op::Elect { d, p, members } => {
                    if !forced && exchange::missing(code, warp, *members, exec, mask) {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    exchange::elect(code, warp, (*d, *p, *members), exec);
                }
                Op::Matrix(args) => {
                    if !forced && mask != warp.live {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    self.spaces.matrix(warp, args, exec, inst.line)?;
                }
                Op::CopyAsync(args) => self.spaces.copy_async(warp, args, exec, inst.line)?,
                Op::Vote {
                    vote,
                    d,
                    p,
                    members,
                } => {
                    if !forced && exchange::missing(code, warp, *members, exec, mask) {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    exchange::vote(code, warp, (*vote, *d, *p, *members), exec);
                }
                Op::WarpSync { members } => {
                    if !forced && exchange::missing(code, warp, *members, exec, mask) {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                }
                Op::ActiveMask { d } => warp.write_words(*d, &[exec; LANES], exec),
                Op::Barrier(args) => {
                    let (id, threads) =
                        barrier::operands(code, self.spaces.block, warp, args, exec, inst.line)?;
                    if args.wait {
                        let wait = Wait::Barrier { id, threads };
                        return Ok((at(pc, mask, wait, frame), Stop::Regroup));
                    }
                    if !forced && mask != warp.live {
                        return Ok((at(pc, mask, Wait::Lanes, frame), Stop::Regroup));
                    }
                    self.barriers.arrive(id);
                }
                Op::Sleep { ns } => {
                    let mut buffer = [0; LANES];
                    let ns = warp.words(code, *ns, &mut buffer);
                    let longest = lanes(exec).map(|lane| ns[lane]).max().unwrap_or(0);
                    let length = u64::from(longest).min(MAX_SLEEP_NS);
                    let until = self.now_ns().saturating_add(length);
                    return Ok((at(pc + 1, mask, Wait::No, frame), Stop::Sleep(until)));
                }
                Op::Trap => {
                    return Err(ExecError::Trap {
                        block: self.spaces.block,
                        line: inst.line,
                    });
                }
                Op::Nop => {}
            }
            pc += 1;
            forced = false;
        }
    }

    fn special(&mut self, warp: &Warp, which: Special) -> [u64; LANES] {
        let lane_mask = |f: fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(lane as u32)));
        let dynamic = self.launch.dynamic_shared_bytes;
        let value = match which {
            Special::Tid(axis) => {
                return match warp.tid.get(usize::from(axis)) {
                    Some(tid) => tid.map(u64::from),
                    None => [0; LANES],
                };
            }
            Special::LaneId => return lane_mask(|lane| lane),
            Special::LaneMaskEq => return lane_mask(|lane| 1 << lane),
            Special::LaneMaskLt => return lane_mask(|lane| (1 << lane) - 1),
            Special::LaneMaskLe => {
                return lane_mask(|lane| (2u32.wrapping_shl(lane)).wrapping_sub(1));
            }
            Special::LaneMaskGt => {
                return lane_mask(|lane| !((2u32.wrapping_shl(lane)).wrapping_sub(1)));
            }
            Special::LaneMaskGe => return lane_mask(|lane| !((1 << lane) - 1)),
            Special::Ntid(axis) => axis_of(self.launch.block, axis, 1),
            Special::Ctaid(axis) => axis_of(self.spaces.block, axis, 0),
            Special::Nctaid(axis) => axis_of(self.launch.grid, axis, 1),
            Special::WarpId => u64::from(warp.index),
            Special::NWarpId => {
                let [x, y, z] = self.launch.block;
                u64::from((x * y * z).div_ceil(LANES as u32))
            }
            Special::SmId => u64::from(self.launch.sm.0),
            Special::NSmId => u64::from(self.launch.sm.1),
            Special::GridId => self.launch.grid_id,
            Special::Clock | Special::GlobalTimer => self.now_ns(),
            Special::GlobalTimerHigh | Special::ClockHigh => self.now_ns() >> 32,
            Special::Zero => 0,
            Special::One => 1,
            Special::Frame => u64::from(warp.frames.at(warp.frame).begin),
            Special::NextFrame => u64::from(warp.frames.at(warp.frame).end).next_multiple_of(16),
            Special::DynamicSharedBytes => u64::from(dynamic),
            Special::TotalSharedBytes => self.spaces.shared.len() as u64,
            Special::ModuleBase => self.launch.module_base,
        };
        [value; LANES]
    }
}

/// A coordinate; the fourth does not exist and is `none`.
fn axis_of(of: [u32; 3], axis: u8, none: u64) -> u64 {
    of.get(usize::from(axis)).map_or(none, |n| u64::from(*n))
}

/// Results of `setp`: the comparison and its complement, each combined with `c`.
fn set_predicates<T>(warp: &mut Warp, args: &CompareArgs<T>, truth: u32, exec: u32) {
    let c = warp.pred(args.c);
    if let Some(p) = args.p {
        warp.write_pred(p, args.logic.apply(truth, c), exec);
    }
    if let Some(q) = args.q {
        warp.write_pred(q, args.logic.apply(!truth, c), exec);
    }
}
