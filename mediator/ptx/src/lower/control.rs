//! Branches, barriers and the exchange of data between lanes.

use super::super::code::{
    BarrierArgs, Dst, Logic, Op, Pred, Shuffle, ShuffleArgs, Src, Vote, VoteDst,
};
use super::super::error::LoadError;
use super::super::kernels::compare_integer;
use super::super::parse::Operand;
use super::super::types::{Modifiers, Space, Type};
use super::{Builder, Targets};

impl<'a> Builder<'a, '_> {
    pub(super) fn control(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        match head {
            "bra" => {
                modifiers.take("uni");
                modifiers.end()?;
                let [Operand::Name(label)] = operands else {
                    return Err(self.bad("expected a label"));
                };
                let (at, line) = (self.code.insts.len(), self.line);
                self.emit(Op::Branch { target: 0 })?;
                self.top().fixups.push((at, label, line));
                Ok(())
            }
            "ret" => {
                modifiers.take("uni");
                modifiers.end()?;
                if !operands.is_empty() {
                    return Err(self.bad("the instruction takes no operands"));
                }
                self.ret()
            }
            "call" => self.call(modifiers, operands),
            "brx" => self.branch_index(modifiers, operands),
            "exit" => self.alone(Op::Exit, &modifiers, operands),
            "trap" => self.alone(Op::Trap, &modifiers, operands),
            "brkpt" => self.alone(Op::Nop, &modifiers, operands),
            // Every access is performed in program order before the next one begins.
            "membar" | "fence" => {
                const PROXIES: [&str; 8] = [
                    "proxy",
                    "alias",
                    "async",
                    "async::generic",
                    "mbarrier_init",
                    "sync_restrict::shared::cta",
                    "sync_restrict::shared::cluster",
                    "async::global",
                ];
                modifiers.take_hints();
                while PROXIES.iter().any(|proxy| modifiers.take(proxy)) {}
                modifiers.take_map(Space::parse);
                modifiers.take_hints();
                self.alone(Op::Nop, &modifiers, operands)
            }
            "nanosleep" => {
                modifiers.take("u32");
                modifiers.end()?;
                let [ns] = operands else {
                    return Err(self.bad("`nanosleep` takes one operand"));
                };
                let ns = self.source(ns, Type::U32, false)?;
                self.emit(Op::Sleep { ns })
            }
            "activemask" => {
                modifiers.take("b32");
                modifiers.end()?;
                let [d] = operands else {
                    return Err(self.bad("`activemask` takes one operand"));
                };
                let d = self.destination(d, Type::B32, false)?;
                self.emit(Op::ActiveMask { d })
            }
            "shfl" => self.shuffle(modifiers, operands),
            "vote" => self.vote(modifiers, operands),
            _ => self.barrier(modifiers, operands),
        }
    }

    /// `brx.idx index, targets;` as a chain of comparisons and branches. An index without a
    /// target is undefined behaviour; here it ends the kernel.
    fn branch_index(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        modifiers.take("uni");
        let known = modifiers.take("idx");
        modifiers.end()?;
        let ([index, Operand::Name(list)], true) = (operands, known) else {
            return Err(modifiers.unsupported());
        };
        let targets = self.blocks.iter().rev().find_map(|b| b.targets.get(list));
        let Some(Targets::Labels(labels)) = targets else {
            return Err(self.bad(&format!("`{list}` is no list of targets")));
        };
        let labels = labels.clone();
        let index = self.source(index, Type::U32, false)?;
        let equal = compare_integer("eq", Type::U32).ok_or_else(|| modifiers.unsupported())?;
        let slot = self.code.preds;
        self.code.preds = slot.checked_add(1).ok_or(self.bad("too many registers"))?;
        let guard = self.guard;
        for (number, label) in labels.into_iter().enumerate() {
            self.guard = guard;
            let number = self.pool(number as u64);
            let logic = (Logic::Move, Pred::Always);
            self.emit_compare(equal, (index, number), (Some(slot), None), logic)?;
            // Lanes that the guard excludes have not compared, and must not follow an old result.
            let both = self.code.preds;
            self.code.preds = both.checked_add(1).ok_or(self.bad("too many registers"))?;
            let (a, b) = (Pred::Reg { slot, not: false }, guard);
            self.guard = Pred::Always;
            let op = Logic::And;
            self.emit(Op::Logic { op, d: both, a, b })?;
            self.guard = Pred::Reg {
                slot: both,
                not: false,
            };
            let (at, line) = (self.code.insts.len(), self.line);
            self.emit(Op::Branch { target: 0 })?;
            self.top().fixups.push((at, label, line));
            self.code.preds = both;
        }
        self.code.preds += 1;
        self.guard = guard;
        self.emit(Op::Trap)
    }

    fn alone(
        &mut self,
        op: Op,
        modifiers: &Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        modifiers.end()?;
        if !operands.is_empty() {
            return Err(self.bad("the instruction takes no operands"));
        }
        self.emit(op)
    }

    /// `shfl.sync.mode.b32 d|p, a, b, c, members`.
    fn shuffle(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let sync = modifiers.take("sync");
        let known = modifiers.take("b32");
        let mode = modifiers.take_map(|m| {
            Some(match m {
                "up" => Shuffle::Up,
                "down" => Shuffle::Down,
                "bfly" => Shuffle::Butterfly,
                "idx" => Shuffle::Index,
                _ => return None,
            })
        });
        modifiers.end()?;
        let (true, Some(mode)) = (known, mode) else {
            return Err(modifiers.unsupported());
        };
        let (d, a, b, c, members) = match operands {
            [d, a, b, c, members] if sync => (d, a, b, c, Some(members)),
            [d, a, b, c] if !sync => (d, a, b, c, None),
            _ => return Err(self.bad("`shfl` takes another number of operands")),
        };
        let (d, p) = self.pair(d)?;
        let p = p.map_or(Ok(None), |p| self.predicate_destination(p))?;
        let d = self.destination(&Operand::Name(d), Type::B32, false)?;
        let a = self.source(a, Type::B32, false)?;
        let b = self.source(b, Type::B32, false)?;
        let c = self.source(c, Type::B32, false)?;
        let members = self.members(members)?;
        self.emit(Op::Shuffle(Box::new(ShuffleArgs {
            mode,
            d,
            p,
            a,
            b,
            c,
            members,
        })))
    }

    /// `vote.sync.mode.type d, {!}p, members`.
    fn vote(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let sync = modifiers.take("sync");
        let vote = modifiers.take_map(|m| {
            Some(match m {
                "all" => Vote::All,
                "any" => Vote::Any,
                "uni" => Vote::Uniform,
                "ballot" => Vote::Ballot,
                _ => return None,
            })
        });
        let ty = if vote == Some(Vote::Ballot) {
            "b32"
        } else {
            "pred"
        };
        let known = modifiers.take(ty);
        modifiers.end()?;
        let (true, Some(vote)) = (known, vote) else {
            return Err(modifiers.unsupported());
        };
        let (d, p, members) = match operands {
            [d, p, members] if sync => (d, p, Some(members)),
            [d, p] if !sync => (d, p, None),
            _ => return Err(self.bad("`vote` takes another number of operands")),
        };
        let d = self.vote_destination(d, vote == Vote::Ballot)?;
        let p = self.predicate(p)?;
        let members = self.members(members)?;
        self.emit(Op::Vote {
            vote,
            d,
            p,
            members,
        })
    }

    /// The members of an exchange; without `.sync` the lanes that execute it (PTX ISA before 6.0).
    fn members(&mut self, members: Option<&Operand<'a>>) -> Result<Src, LoadError> {
        if let Some(members) = members {
            return self.source(members, Type::B32, false);
        }
        let slot = self.temp_word()?;
        let d = Dst::Word(slot);
        self.emit(Op::ActiveMask { d })?;
        Ok(Src::Word(slot))
    }

    fn vote_destination(&mut self, d: &Operand<'a>, number: bool) -> Result<VoteDst, LoadError> {
        if number {
            return Ok(VoteDst::Reg(self.destination(d, Type::B32, false)?));
        }
        let Operand::Name(name) = d else {
            return Err(self.bad("expected a predicate"));
        };
        Ok(VoteDst::Pred(self.predicate_register(name)?))
    }

    /// `bar` and `barrier`. A barrier counts warps, so the aligned and the unaligned form are the
    /// same: late lanes of a warp join those that wait.
    fn barrier(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        modifiers.take("cta");
        modifiers.take("aligned");
        if modifiers.take("cluster") {
            return self.cluster_barrier(modifiers, operands);
        }
        if modifiers.take("warp") {
            let known = modifiers.take("sync");
            modifiers.end()?;
            let ([members], true) = (operands, known) else {
                return Err(modifiers.unsupported());
            };
            let members = self.source(members, Type::B32, false)?;
            return self.emit(Op::WarpSync { members });
        }
        let (sync, arrive, red) = (
            modifiers.take("sync"),
            modifiers.take("arrive"),
            modifiers.take("red"),
        );
        let mut reduce: Option<(Vote, VoteDst, Pred)> = None;
        let rest = match (sync, arrive, red) {
            (true, false, false) | (false, true, false) => operands,
            (false, false, true) => {
                let vote = modifiers.take_map(|m| {
                    Some(match m {
                        "popc" => Vote::Count,
                        "and" => Vote::All,
                        "or" => Vote::Any,
                        _ => return None,
                    })
                });
                let vote = vote.ok_or_else(|| modifiers.unsupported())?;
                let ty = if vote == Vote::Count { "u32" } else { "pred" };
                if !modifiers.take(ty) {
                    return Err(modifiers.unsupported());
                }
                let [d, rest @ .., p] = operands else {
                    return Err(self.bad("the barrier takes more operands"));
                };
                let d = self.vote_destination(d, vote == Vote::Count)?;
                reduce = Some((vote, d, self.predicate(p)?));
                rest
            }
            _ => return Err(modifiers.unsupported()),
        };
        modifiers.end()?;
        let (id, threads): (Src, Option<Src>) = match rest {
            [id] if !arrive => (self.source(id, Type::U32, false)?, None),
            [id, threads] => {
                let id = self.source(id, Type::U32, false)?;
                (id, Some(self.source(threads, Type::U32, false)?))
            }
            _ => return Err(self.bad("the barrier takes another number of operands")),
        };
        let wait = !arrive;
        self.emit(Op::Barrier(Box::new(BarrierArgs {
            id,
            threads,
            wait,
            cluster: false,
            reduce,
        })))
    }
}
