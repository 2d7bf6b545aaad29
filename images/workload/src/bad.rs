//! Misbehaviours: each must be answered with the documented code, and the device must still work
//! for this VM.

use crate::args::Misbehaviour;
use crate::report::Report;
use crate::session::{During, Fail, PATIENCE_NS, Session};
use turnstile_abi::Platform;
use turnstile_abi::{CHUNK_BYTES, Command, CopyDirection, Dim3, ErrorCode, Launch, MAILBOX_ARGS};
use turnstile_guest::{Channel, DriverError, Kernel, Params};

const ENTRIES: u32 = 16;
/// Beyond any guest memory, and aligned.
const WILD_GPA: u64 = 1 << 56;

/// Misbehaves and expects the documented error.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    kind: Misbehaviour,
    report: &mut Report,
) -> Result<(), Fail> {
    match kind {
        Misbehaviour::MillionRings => million_rings(session, report)?,
        Misbehaviour::MailboxGarbage => mailbox_garbage(session, report)?,
        Misbehaviour::BadText => bad_text(session, report)?,
        Misbehaviour::TooMuchMemory => {
            let result = session.device.allocate(1 << 50).map(|_| ());
            expect(
                "Allocating a pebibyte",
                result,
                ErrorCode::OutOfGpuMemory,
                report,
            )?;
        }
        Misbehaviour::TooManyChannels => too_many_channels(session, report)?,
        _ => bad_command(session, kind, report)?,
    }
    // The device must have survived it.
    let mut channel = session.channel(ENTRIES, 1)?;
    channel.submit(&Command::Nop).during("Adding a NOP")?;
    channel
        .finish(PATIENCE_NS)
        .during("Using the device afterwards")?;
    session
        .device
        .close_channel(channel)
        .during("Closing the channel")
}

/// Notes whether `result` is a refusal or fault with the documented code.
fn expect(
    during: &'static str,
    result: Result<(), DriverError>,
    expected: ErrorCode,
    report: &mut Report,
) -> Result<(), Fail> {
    let got = match result {
        Ok(()) => 0,
        Err(error) => match error.code() {
            Some(code) => code as u32,
            None => return Err(error).during(during),
        },
    };
    report.error = got.into();
    report.count(got == expected as u32);
    if got == expected as u32 {
        Ok(())
    } else {
        Err(Fail::Code {
            during,
            got,
            expected: expected as u32,
        })
    }
}

fn launch(kernel: Kernel, block: Dim3, params_gpa: u64) -> Command {
    Command::Launch(Launch {
        module: kernel.module,
        function: kernel.function,
        grid: Dim3::line(1),
        block,
        shared_bytes: 0,
        param_bytes: kernel.param_bytes,
        params_gpa,
    })
}

fn bad_command<P: Platform>(
    session: &mut Session<'_, P>,
    kind: Misbehaviour,
    report: &mut Report,
) -> Result<(), Fail> {
    let mut channel = session.channel(ENTRIES, 1)?;
    let module = session.module("spin.ptx")?;
    let spin = session.kernel(module, "spin")?;
    let params = channel.memory().ring_gpa();
    let copy = |direction, source, destination| Command::Copy {
        direction,
        source,
        destination,
        bytes: 4096,
    };
    let block = Dim3::line(32);
    let run = |channel: &mut Channel<'_, P>, command: Command| {
        channel.submit(&command)?;
        channel.finish(PATIENCE_NS)
    };
    let run_spin = |channel: &mut Channel<'_, P>, ns: u64, out: u64| {
        let params = Params::new().u64(ns).u64(out).u32(0).u32(1);
        channel.launch(spin, Dim3::line(1), block, 0, &params)?;
        channel.finish(PATIENCE_NS)
    };
    let (result, expected) = match kind {
        Misbehaviour::UnknownCommand | Misbehaviour::ReservedField => {
            let mut bytes = Command::Nop.encode();
            let (at, expected) = match kind {
                Misbehaviour::UnknownCommand => (1, ErrorCode::UnknownCommand),
                _ => (40, ErrorCode::ReservedNotZero),
            };
            bytes[at] = 0x77;
            let result = channel
                .submit_raw(&bytes)
                .and_then(|()| channel.finish(PATIENCE_NS));
            (result, expected)
        }
        Misbehaviour::BadModule => {
            let module = 0x00c0_ffee;
            let command = launch(Kernel { module, ..spin }, block, params);
            (run(&mut channel, command), ErrorCode::NoSuchModule)
        }
        Misbehaviour::BadFunction => {
            let function = 0x00c0_ffee;
            let command = launch(Kernel { function, ..spin }, block, params);
            (run(&mut channel, command), ErrorCode::NoSuchFunction)
        }
        Misbehaviour::WildCopy => {
            let command = copy(CopyDirection::GuestToGpu, 0, 0x1000);
            (run(&mut channel, command), ErrorCode::PageFault)
        }
        Misbehaviour::WildGuestCopy => {
            let memory = session.device.allocate(CHUNK_BYTES).during("Allocating")?;
            let command = copy(CopyDirection::GuestToGpu, WILD_GPA, memory.va);
            (run(&mut channel, command), ErrorCode::NotGuestMemory)
        }
        Misbehaviour::WildFence => {
            let command = Command::Fence {
                gpa: WILD_GPA,
                value: 1,
                interrupt: true,
            };
            (run(&mut channel, command), ErrorCode::NotGuestMemory)
        }
        Misbehaviour::WildKernel => (run_spin(&mut channel, 1, 0x1000), ErrorCode::PageFault),
        Misbehaviour::BadLaunch => {
            let command = launch(spin, Dim3::line(1025), params);
            (run(&mut channel, command), ErrorCode::BadLaunch)
        }
        Misbehaviour::PutOutOfRange => {
            let put = channel.put().wrapping_add(ENTRIES + 1);
            session.platform.ring_doorbell(channel.number(), put);
            let result = channel.wait_until(PATIENCE_NS, 1_000_000, |_| false);
            (result, ErrorCode::PutOutOfRange)
        }
        Misbehaviour::SpinForever => {
            let memory = session.device.allocate(CHUNK_BYTES).during("Allocating")?;
            let result = run_spin(&mut channel, u64::MAX, memory.va);
            (result, ErrorCode::KernelTimeout)
        }
        _ => return Err(Fail::text("The misbehaviour is no command")),
    };
    expect("Misbehaving on a channel", result, expected, report)?;
    session
        .device
        .close_channel(channel)
        .during("Closing the faulted channel")
}

fn million_rings<P: Platform>(
    session: &mut Session<'_, P>,
    report: &mut Report,
) -> Result<(), Fail> {
    let mut channel = session.channel(ENTRIES, 1)?;
    for _ in 0..1_000_000 {
        session
            .platform
            .ring_doorbell(channel.number(), channel.put());
        report.doorbells += 1;
        if session.stop() {
            break;
        }
    }
    channel
        .finish(PATIENCE_NS)
        .during("Using a channel after a million doorbells")?;
    report.count(true);
    session
        .device
        .close_channel(channel)
        .during("Closing the channel")
}

fn mailbox_garbage<P: Platform>(
    session: &mut Session<'_, P>,
    report: &mut Report,
) -> Result<(), Fail> {
    let wild = [u64::MAX; MAILBOX_ARGS];
    let with = |words: &[u64]| {
        let mut args = [0; MAILBOX_ARGS];
        args[..words.len()].copy_from_slice(words);
        args
    };
    let requests = [
        (0, wild, ErrorCode::UnknownOp),
        (11, wild, ErrorCode::UnknownOp),
        (u32::MAX, wild, ErrorCode::UnknownOp),
        (1, wild, ErrorCode::BadRingSize),
        (1, with(&[1, 64, 0, 0]), ErrorCode::BadAlignment),
        (1, with(&[WILD_GPA, 64, 0, 0]), ErrorCode::NotGuestMemory),
        (1, with(&[0, 64, WILD_GPA, 0]), ErrorCode::NotGuestMemory),
        (1, with(&[0, 64, 0, 5000]), ErrorCode::BadArgument),
        (2, with(&[77_777]), ErrorCode::NoSuchChannel),
        (3, with(&[0]), ErrorCode::BadArgument),
        (3, wild, ErrorCode::OutOfGpuMemory),
        (4, wild, ErrorCode::NoSuchAllocation),
        (5, with(&[WILD_GPA, 100]), ErrorCode::NotGuestMemory),
        (5, wild, ErrorCode::ModuleTooLarge),
        (6, with(&[77_777]), ErrorCode::NoSuchModule),
        (6, wild, ErrorCode::NoSuchModule),
        (7, with(&[77_777, 0, 4]), ErrorCode::NoSuchModule),
        (8, wild, ErrorCode::BadArgument),
        (9, wild, ErrorCode::BadArgument),
        (9, with(&[0, 0, 1]), ErrorCode::BadArgument),
        (9, with(&[u64::MAX, 1, 1]), ErrorCode::OutOfGpuMemory),
        (10, wild, ErrorCode::NoSuchTask),
        (10, with(&[77_777]), ErrorCode::NoSuchTask),
    ];
    for (op, args, expected) in requests {
        let result = session.device.request_raw(op, args).map(|_| ());
        expect("Making a wild request", result, expected, report)?;
    }
    Ok(())
}

fn bad_text<P: Platform>(session: &mut Session<'_, P>, report: &mut Report) -> Result<(), Fail> {
    let gpa = session.heap.take(4096, 64).during("Setting up a text")?;
    let text = b".version 9.0\n.target sm_75\n.address_size 64\n\nthis is no PTX;\n";
    session.platform.write_bytes(gpa, text);
    let result = session.device.load_module(gpa, text.len() as u64);
    if let Err(DriverError::Refused { text, .. }) = &result
        && text.as_str().is_empty()
    {
        return Err(Fail::text("A module was refused without a reason"));
    }
    let result = result.map(|_| ());
    expect("Loading nonsense", result, ErrorCode::ModuleRefused, report)
}

fn too_many_channels<P: Platform>(
    session: &mut Session<'_, P>,
    report: &mut Report,
) -> Result<(), Fail> {
    let limit = session.device.channels();
    for _ in 0..limit {
        // They stay open on purpose, and are closed below by their numbers.
        session.channel(8, 1)?;
    }
    let one_more = session.channel(8, 1);
    let result = match one_more {
        Ok(_) => Ok(()),
        Err(Fail::Driver { error, .. }) => Err(error),
        Err(fail) => return Err(fail),
    };
    expect(
        "Opening one more",
        result,
        ErrorCode::TooManyChannels,
        report,
    )?;
    let close = |channel: u32| {
        let mut args = [0; MAILBOX_ARGS];
        args[0] = channel.into();
        session.device.request_raw(2, args)
    };
    for channel in 0..limit {
        close(channel).during("Closing a channel by its number")?;
    }
    Ok(())
}
