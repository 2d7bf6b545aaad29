//! Whether the engine has work, found out by looking at it. Pure but for what its [`Eyes`] see.
//!
//! ```text
//!   who was on the engine -> his channels' words moved: works
//!   the log -> who is on it -- nobody: dry
//!                 |-- trusted: works
//!                 '-- somebody -- seen without work, and his words stand still since: dry
//!                        '------ the status register, again and again -- busy once: works
//!                                                                     '- never busy: dry
//! ```

use turnstile_accounting::{Moment, Nanos, TenantId};

use super::progress::Said;
use super::watch::{Runner, Watch};

/// Where somebody is looked at, who is on the engine is looked up again after so long: while one has a turn to himself, others come but seldom. A reading
/// of the log costs 0.1 ms of processor time, as much as one of the status register. SOURCE: measured on an H200.
const FRESH: Nanos = Nanos::from_ms(6);

/// The same where nobody may have come whose channels are asked: somebody may whose are not.
const OLD: Nanos = Nanos::from_ms(30);

/// What is told of the log ends before it was read if that was so lately: [`super::watch::SETTLED`] ago.
pub(super) const JUST_NOW: Nanos = Nanos::from_us(300);

/// Who worked for long may launch nothing for so long, and goes on. SOURCE: `simulated/pauses.rs`: hosts pause for longer twice in a minute.
const PAUSE: Nanos = Nanos::from_ms(2);

/// Of more it is not asked whether they launched anything: reading the log costs as much. SOURCE: measured on an H200: 47 us; 1.5 us for each channel of each, of which CUDA makes
/// eight.
const ASKED_MAX: usize = 3;

/// What is looked with: at a GPU, or at a simulated one.
pub(super) trait Eyes {
    /// The GPU's time.
    fn now(&self) -> Moment;
    /// Whether calls that hold tenants, or let them go, are under way.
    fn is_moving(&self) -> bool;
    /// Whether a tenant may not run.
    fn is_held(&self, tenant: TenantId) -> bool;
    /// Looks up, or changes, what is known.
    fn with<R>(&mut self, act: impl FnOnce(&mut Watch) -> R) -> R;
    /// Whom the engine works for, as far as that is known.
    fn runner(&mut self) -> Runner;
    /// How long ago the log was read.
    fn read_ago(&self) -> Nanos;
    /// Reads the log up to now.
    fn read(&mut self);
    /// Reads of it what is there by itself; whether nothing was lost, and nobody was there who is no tenant.
    fn read_shown(&mut self) -> bool;
    /// What a tenant's channels say.
    fn ask(&mut self, tenant: TenantId) -> Said;
    /// Whether they say more than that by now; none if that is not known.
    fn has_moved(&mut self, tenant: TenantId) -> Option<bool>;
    /// Whether the engine works, by its own status.
    fn works(&mut self) -> bool;
    /// Who is on the engine, by its own status; none if that is not known, or nobody is.
    fn on_engine(&mut self) -> Option<TenantId>;
    /// Waits for so long.
    fn pause(&mut self, pause: Nanos);
}

/// Whether the engine has nothing to do, as far as those go who may run.
pub(super) fn is_dry(eyes: &mut impl Eyes) -> bool {
    if eyes.is_moving() {
        return false;
    }
    let begin = eyes.now();
    let told = eyes.with(|watch| watch.hosts.has_told_stop());
    let there = told.then(|| look_up(eyes)).flatten();
    let free = free_resident(eyes);
    let said = free.map_or(Said::Nothing, |tenant| eyes.ask(tenant));
    if let Some(tenant) = free
        && eyes.with(|watch| watch.goes_on(tenant, said, begin))
    {
        return false;
    }
    // Another reading of the log would say the same where nobody has launched anything.
    let ago = eyes.read_ago();
    if ago > FRESH
        && free.is_none_or(|tenant| there.or_else(|| eyes.on_engine()) != Some(tenant))
        && (ago > OLD || said == Said::Nothing || may_have_come(eyes))
    {
        eyes.read();
    }
    let runner = match eyes.runner() {
        // Who has just been let in may have come since.
        Runner::Nobody => {
            eyes.read();
            eyes.runner()
        }
        runner => runner,
    };
    let tenant = match runner {
        Runner::Working(_) => return false,
        Runner::Nobody => return !eyes.is_moving(),
        Runner::Perhaps(tenant) => tenant,
    };
    if free == Some(tenant) && said != Said::Nothing {
        return stands(eyes, tenant, said, begin);
    }
    // Reading the log took its time.
    let begin = eyes.now();
    let said = eyes.ask(tenant);
    stands(eyes, tenant, said, begin)
}

/// Who is on the engine, by its own status. Where that is another than by the log, the driver may have moved since what tells of it.
pub(super) fn look_up(eyes: &mut impl Eyes) -> Option<TenantId> {
    let there = eyes.on_engine();
    if there.is_some() && eyes.with(|watch| watch.residency.resident()) != there {
        eyes.read_shown();
    }
    there
}

/// The same of one who is on the engine, and whose channels say this.
fn stands(eyes: &mut impl Eyes, tenant: TenantId, said: Said, begin: Moment) -> bool {
    let still = matches!(said, Said::Still { .. });
    if still && eyes.with(|watch| watch.rests(tenant, begin)) {
        if eyes.on_engine() == Some(tenant) {
            return !eyes.is_moving();
        }
        // Another may have come.
        eyes.read();
        return eyes.with(|watch| watch.residency.resident()) == Some(tenant) && !eyes.is_moving();
    }
    let (mut works, readings) = match eyes.with(|watch| watch.stands_after(tenant, said)) {
        Some(pause) => {
            eyes.pause(pause);
            (eyes.has_moved(tenant) != Some(false), 0)
        }
        None => by_register(eyes, tenant, said),
    };
    if (!works || eyes.with(|watch| watch.residency.is_idle() || watch.has_ended(tenant, begin)))
        && !is_read(eyes)
    {
        // Somebody may have come meanwhile, or before.
        eyes.read();
    }
    if eyes.is_moving() {
        return false;
    }
    // He may have launched meanwhile.
    let (has_moved, now) = (eyes.has_moved(tenant), eyes.now());
    let is_here = eyes.with(|watch| {
        // At once: another thread that reads the log may find somebody else.
        let is_here = watch.residency.resident() == Some(tenant);
        if is_here {
            if readings > 0 && has_moved == Some(false) && said != Said::Nothing {
                watch.progress.stood(tenant, works, now);
            }
            works = works || has_moved == Some(true);
            watch.progress.checked(tenant, works, begin);
            watch.seen(tenant, works, readings, begin, said);
        }
        is_here
    });
    is_here && !works
}

/// Whether the engine works by its status register, and the readings that say so.
fn by_register(eyes: &mut impl Eyes, tenant: TenantId, said: Said) -> (bool, u32) {
    let most = eyes.with(|watch| watch.idle_readings(tenant, said));
    let (mut works, mut readings) = (false, 0);
    while !works && readings < most {
        if readings > 0 {
            let pause = eyes.with(Watch::reading_pause);
            eyes.pause(pause);
        }
        works = eyes.works();
        readings += 1;
    }
    (works, readings)
}

/// Whether another reading of the log would say what is known: who was on the engine is, by its own status, and since then nobody else was let in, or could come by himself: who
/// rests, and would have been heard, has not. (Who is nobody's may; he is seen within [`OLD`], or so long after that as the driver takes to move it, and from then on the log is read for him.)
fn is_read(eyes: &mut impl Eyes) -> bool {
    let (ago, begin) = (eyes.read_ago(), eyes.now());
    if ago < JUST_NOW || eyes.with(|watch| watch.is_confirmed(begin)) {
        return true;
    }
    if ago > OLD && !eyes.read_shown() {
        return false;
    }
    let there = look_up(eyes);
    let Some(resident) = free_resident(eyes).filter(|resident| there == Some(*resident)) else {
        return false;
    };
    let (others, now) = (others(eyes, Some(resident)), eyes.now());
    let is_read = eyes.with(|watch| watch.is_still())
        && others.iter().all(|tenant| {
            eyes.is_held(*tenant) || eyes.with(|watch| watch.hosts.is_silent(*tenant, now))
        });
    if is_read {
        eyes.with(|watch| watch.confirm(begin));
    }
    is_read
}

/// At the end of a period: reads the log, unless that would say what is known, and looks whether one whom nobody waits for has begun, or stopped. Of one who is alone the counters say all, and better: his idle time is
/// that of the engine.
pub(super) fn glance<E: Eyes, T>(eyes: &mut E, read: impl FnOnce(&mut E) -> T) -> Option<T> {
    let read = |eyes: &mut E| (!is_read(eyes)).then(|| read(eyes));
    if eyes.with(|watch| watch.demand.is_alone()) {
        return read(eyes);
    }
    // Asked before: the log may say that he has left since, and not when his work ended.
    let before = free_resident(eyes).map(|tenant| (tenant, doubt(eyes, tenant)));
    let read = read(eyes);
    let left: Vec<TenantId> = eyes.with(|watch| watch.progress.to_be_asked().collect());
    let now = eyes.now();
    for tenant in left {
        if !eyes.with(|watch| watch.ask_who_sleeps(tenant, now)) {
            eyes.ask(tenant);
        }
    }
    if let Some(tenant) = free_resident(eyes) {
        let same = before.filter(|(resident, _)| *resident == tenant);
        let doubt = same.map_or_else(|| doubt(eyes, tenant), |(_, doubt)| doubt);
        if let Some((said, at)) = doubt.filter(|_| !eyes.is_moving()) {
            stands(eyes, tenant, said, at);
        }
    }
    read
}

/// Whether there may be something to decide or to be told while nobody is held: two want the engine, or who is on it may have begun, or stopped. Where another may have come since the
/// log was read, it is read.
pub(super) fn may_decide(eyes: &mut impl Eyes) -> bool {
    if may_differ(eyes) {
        return true;
    }
    if is_another_at_work(eyes) || !may_have_come(eyes) {
        return false;
    }
    eyes.read();
    let now = eyes.now();
    // Who is there for a moment needs no turns.
    eyes.with(|watch| watch.demand.wanting(now).nth(1).is_some() || !watch.knows_all())
}

/// Whether one has come since the log was read who works as he did before, and nobody else has launched anything: by the engine's own status. That is nothing to be decided, and its
/// log can wait.
fn is_another_at_work(eyes: &mut impl Eyes) -> bool {
    let now = eyes.now();
    let Some(other) = eyes.on_engine() else {
        return false;
    };
    if eyes.is_held(other) || !eyes.with(|watch| watch.trusted(other, now)) && !eyes.works() {
        return false;
    }
    let others = others(eyes, Some(other));
    let mut moved = others.into_iter().map(|tenant| eyes.has_moved(tenant));
    moved.all(|moved| moved == Some(false))
}

/// Whether who is on the engine may have begun, or stopped, since it was last looked. (Of who is alone the counters say it.)
fn may_differ(eyes: &mut impl Eyes) -> bool {
    if eyes.with(|watch| watch.demand.is_alone()) {
        return false;
    }
    let Some(tenant) = free_resident(eyes) else {
        return false;
    };
    let now = eyes.now();
    if !eyes.with(|watch| watch.residency.is_idle()) {
        return !eyes.with(|watch| watch.trusted(tenant, now));
    }
    eyes.has_moved(tenant) != Some(false) || !eyes.with(|watch| watch.rests(tenant, now))
}

/// Whether another than who is on the engine may have come since the log was read. Nobody has who launched nothing, or is held.
pub(super) fn may_have_come(eyes: &mut impl Eyes) -> bool {
    let resident = eyes.with(|watch| watch.residency.resident());
    let mut others = others(eyes, resident);
    others.retain(|tenant| !eyes.is_held(*tenant));
    others.len() > ASKED_MAX
        || others.into_iter().any(|tenant| {
            eyes.has_moved(tenant).unwrap_or_else(|| {
                // Next time it is known.
                eyes.ask(tenant);
                true
            })
        })
}

/// At a latch of the counters: who is on the engine is asked what he launched until then. (Who is held has launched nothing since he was asked last.)
pub(super) fn at_latch(eyes: &mut impl Eyes) {
    if let Some(tenant) = free_resident(eyes) {
        eyes.ask(tenant);
    }
}

/// What the channels of one on the engine say, and when, if that leaves a doubt whether he has work.
fn doubt(eyes: &mut impl Eyes, tenant: TenantId) -> Option<(Said, Moment)> {
    let at = eyes.now();
    if eyes.with(|watch| watch.has_just_stopped(tenant, at)) {
        return None;
    }
    let said = eyes.ask(tenant);
    let doubt = eyes.with(|watch| match said {
        Said::Nothing => false,
        _ if watch.goes_on(tenant, said, at) => false,
        // Who worked for long and goes on is not looked at: the counters tell of his pauses.
        Said::Moved { .. } => !watch.trusted(tenant, at),
        // Nor who did so until a moment ago: the look at a latch came just before the end of his turn.
        Said::Still { moved_at, .. } if at.since(moved_at) < PAUSE && watch.trusted(tenant, at) => {
            false
        }
        Said::Still { .. } if watch.residency.is_idle() => !watch.rests(tenant, at),
        Said::Still { .. } => watch.progress.may_rest(tenant, at),
    });
    doubt.then_some((said, at))
}

/// All tenants but this one.
fn others(eyes: &mut impl Eyes, but: Option<TenantId>) -> Vec<TenantId> {
    eyes.with(|watch| {
        let all = watch.demand.tenants();
        all.filter(|tenant| Some(*tenant) != but).collect()
    })
}

fn free_resident(eyes: &mut impl Eyes) -> Option<TenantId> {
    let resident = eyes.with(|watch| watch.residency.resident());
    resident.filter(|tenant| !eyes.is_held(*tenant))
}
