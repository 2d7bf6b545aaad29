//! The rules of the ioctl filter: which controls of channels a tenant may make. Refused are
//! controls that evade a hold, hold other tenants, or take more than the tenant's turn. The status
//! is the one that the driver returns to callers without the right. Pure.
//!
//! The driver requires no right for most of these controls. A program of any user may set the
//! timeslice of its groups, resume its suspended channels, and suspend channels of other programs.
//! The controls that the vendor's CUDA library makes for a new context pass, with the values that
//! it uses.
//!
//! SOURCE: names, numbers, layouts: `ctrl/ctrla06c.h`, `ctrl/ctrla06f/ctrla06fgpfifo.h`,
//! `ctrl/ctrl2080/ctrl2080fifo.h`, `ctrl/ctrl2080/ctrl2080gr.h`, `ctrl/ctrl5080.h`. The values that
//! the library uses, and the driver's answers to a program of an ordinary user: measured on an H200
//! under driver 580.159.04.

/// NV_ERR_INSUFFICIENT_PERMISSIONS. SOURCE: `nvstatuscodes.h`.
pub const REFUSED: u32 = 0x1b;

/// Length of a control's parameters that is read.
pub(crate) const PARAMS_BYTES: usize = 16;

/// NVOS54_FLAGS_FINN_SERIALIZED: the parameters have another form. SOURCE: `nvos.h`.
const SERIALIZED: u32 = 4;

/// Longest timeslice of a group in microseconds: the library's value for its compute group.
const TIME_SLICE_MAX_US: u64 = 2048;

/// A control that a program requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Number of the control.
    pub command: u32,
    /// How its parameters are passed.
    pub flags: u32,
    /// First bytes of the parameters; zero after their end.
    pub params: [u8; PARAMS_BYTES],
}

impl Control {
    const fn word(&self, index: usize) -> u32 {
        let at = 4 * index;
        u32::from_ne_bytes([
            self.params[at],
            self.params[at + 1],
            self.params[at + 2],
            self.params[at + 3],
        ])
    }
}

/// Rule of a control.
#[derive(Clone, Copy)]
enum Rule {
    Never,
    /// Permitted if the parameters satisfy the function.
    If(fn(&Control) -> bool),
}

/// A table of rules: the vendor's name of a control, its number, the rule.
macro_rules! rules {
    ($($name:ident $number:literal $rule:expr;)*) => { &[$((stringify!($name), $number, $rule)),*] };
}

/// Controls with a rule; all others pass.
const RULES: &[(&str, u32, Rule)] = rules! {
    // Suspend and resume the channels of any program.
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS 0x2080_110b Rule::Never;
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION 0x2080_111a Rule::Never;
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2 0x2080_111b Rule::Never;
    NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS 0x2080_1117 Rule::Never;
    // May carry the first, and the binding of a preemption mode.
    NV5080_CTRL_CMD_DEFERRED_API 0x5080_0101 Rule::Never;
    NV5080_CTRL_CMD_DEFERRED_API_V2 0x5080_0103 Rule::Never;
    NV2080_CTRL_CMD_FIFO_CHANNEL_PREEMPTIVE_REMOVAL 0x2080_110a Rule::Never;
    NV2080_CTRL_CMD_FIFO_CONFIG_CTXSW_TIMEOUT 0x2080_1110 Rule::Never;
    NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY 0x2080_1115 Rule::Never;
    NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE 0x2080_1121 Rule::Never;
    // A context that is not preemptible within a kernel cannot be held.
    NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE 0x2080_1210 Rule::If(stays_preemptible);
    // The same in another form, which the library does not use.
    NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND 0x2080_1211 Rule::Never;
    NVA06C_CTRL_CMD_GPFIFO_SCHEDULE 0xa06c_0101 Rule::If(schedules);
    NVA06F_CTRL_CMD_GPFIFO_SCHEDULE 0xa06f_0103 Rule::If(schedules);
    NVA06C_CTRL_CMD_SET_TIMESLICE 0xa06c_0103 Rule::If(has_a_short_slice);
    NVA06C_CTRL_CMD_PREEMPT 0xa06c_0105 Rule::If(waits_for_its_preemption);
    // The driver refuses these to ordinary users.
    NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL 0xa06c_0107 Rule::If(is_interleaved_low);
    NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL 0xa06f_0109 Rule::If(is_interleaved_low);
    NVA06C_CTRL_CMD_MAKE_REALTIME 0xa06c_0110 Rule::Never;
    NVA06F_CTRL_CMD_RESTART_RUNLIST 0xa06f_0111 Rule::Never;
};

/// Whether the rule of this control depends on its parameters, so that they have to be read.
pub(crate) fn needs_params(command: u32) -> bool {
    matches!(rule(command), Some(Rule::If(_)))
}

/// Whether a program may make this control.
pub fn permits(control: &Control) -> bool {
    match rule(control.command) {
        None => true,
        Some(Rule::Never) => false,
        Some(Rule::If(permitted)) => control.flags & SERIALIZED == 0 && permitted(control),
    }
}

fn rule(command: u32) -> Option<Rule> {
    let found = RULES.iter().find(|(_, number, _)| *number == command);
    found.map(|(_, _, rule)| *rule)
}

/// Flags, of which bit 0 sets the mode of compute; hChannel; mode of graphics; mode of compute (2:
/// CILP).
fn stays_preemptible(control: &Control) -> bool {
    control.word(0) & 1 == 0 || control.word(3) == 2
}

/// bEnable, bSkipSubmit, bSkipEnable.
fn schedules(control: &Control) -> bool {
    control.params[..3] == [1, 0, 0]
}

/// timesliceUs, of 64 bits; zero is none.
fn has_a_short_slice(control: &Control) -> bool {
    let slice_us = u64::from(control.word(1)) << 32 | u64::from(control.word(0));
    (1..=TIME_SLICE_MAX_US).contains(&slice_us)
}

/// bWait, bManualTimeout: without waiting, a program could make any number of these calls.
fn waits_for_its_preemption(control: &Control) -> bool {
    control.params[..2] == [1, 0]
}

/// NVA06C_CTRL_INTERLEAVE_LEVEL_LOW.
fn is_interleaved_low(control: &Control) -> bool {
    control.word(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(command: u32, words: &[u32]) -> Control {
        let mut params = [0; PARAMS_BYTES];
        for (at, word) in words.iter().enumerate() {
            params[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        Control {
            command,
            flags: 0,
            params,
        }
    }

    /// SOURCE: measured: all controls of these kinds that the CUDA library made for PyTorch and for
    /// a plain program, driver 580.159.04.
    #[test]
    fn controls_of_the_library_pass() {
        let controls = [
            control(0xa06c_0101, &[1]),
            control(0xa06c_0103, &[0x800, 0]),
            control(0xa06c_0105, &[1, 0]),
            control(0x2080_1210, &[1, 0x5c00_0015, 0, 2]),
            control(0x83de_0309, &[0x3a]),
            control(0x2080_1218, &[0x5c00_001c]),
            control(0x906f_0101, &[0]),
        ];
        for control in controls {
            assert!(permits(&control), "{:#x}", control.command);
        }
    }

    #[test]
    fn what_evades_or_hurts_does_not() {
        let controls = [
            control(0x2080_110b, &[0, 8]),
            control(0x2080_110b, &[1, 8]),
            control(0x2080_111a, &[]),
            control(0x2080_111b, &[]),
            control(0x2080_1117, &[]),
            control(0x5080_0101, &[]),
            control(0x5080_0103, &[]),
            control(0x2080_1115, &[]),
            control(0x2080_1210, &[1, 0x5c00_0015, 0, 0]),
            control(0x2080_1210, &[3, 0x5c00_0015, 0, 1]),
            control(0x2080_1211, &[]),
            control(0xa06c_0101, &[0]),
            control(0xa06c_0101, &[0x0001_0001]),
            control(0xa06f_0103, &[0]),
            control(0xa06c_0103, &[100_000, 0]),
            control(0xa06c_0103, &[1, 1]),
            control(0xa06c_0103, &[0, 0]),
            control(0xa06c_0105, &[0, 0]),
            control(0xa06c_0105, &[0x0101, 1_000_000]),
            control(0xa06c_0107, &[2]),
            control(0xa06f_0109, &[1]),
            control(0xa06c_0110, &[1]),
            control(0xa06f_0111, &[1]),
        ];
        for control in controls {
            assert!(!permits(&control), "{control:x?}");
        }
    }

    #[test]
    fn parameters_in_another_form_are_not_understood() {
        let mut slice = control(0xa06c_0103, &[0x800]);
        assert!(permits(&slice) && needs_params(slice.command));
        slice.flags = SERIALIZED;
        assert!(!permits(&slice));
        assert!(!needs_params(0x2080_110b) && !needs_params(0x906f_0101));
    }

    #[test]
    fn every_rule_has_its_own_control_which_has_that_number_in_every_release() {
        for release in turnstile_nvidia_guest::abi::releases() {
            let known = RULES.iter().filter(|(name, number, _)| {
                let of_release = release.numbers.get(*name);
                of_release
                    .inspect(|known| assert_eq!(*known, number, "{name}"))
                    .is_some()
            });
            // 570 and 575 have no name for CONFIG_CTXSW_TIMEOUT.
            assert!(known.count() >= RULES.len() - 1, "{}", release.version);
        }
        let mut numbers: Vec<u32> = RULES.iter().map(|(_, number, _)| *number).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|two| two[0] != two[1]));
    }
}
