//! The usher's process.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;

use rustix::process::{Signal, getpid, kill_process};
use turnstile_vmm::wire::WireError;

use super::board::{Board, LEFT};
use super::engine::{CudaEngine, Engine, EngineFailure};
use super::{Order, Ready};
use crate::line::Line;

/// Why an usher ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The daemon does not keep to the protocol.
    #[error("Talking to the daemon failed")]
    Wire(#[from] WireError),
    /// The GPU refuses, and goes on doing so.
    #[error("The usher has no GPU")]
    Engine(#[from] EngineFailure),
    /// The daemon said what does not belong there.
    #[error("The daemon's order does not belong here: {0}")]
    Order(String),
}

/// Runs the usher of a GPU, by CUDA's number, on the connection `stream` until the daemon ends it. Then the process ends: the vendor's library
/// would wait for a visit that nobody rings for.
///
/// # Errors
/// If the GPU refuses before.
pub fn run(stream: UnixStream, device: u32) -> Result<(), ServeError> {
    serve(stream, |board| CudaEngine::new(device, board)).or_else(|error| match error {
        ServeError::Engine(_) => Err(error),
        ServeError::Wire(_) | ServeError::Order(_) => {
            log::error!("{error}");
            Ok(())
        }
    })?;
    // It is this process: it cannot be refused, and does not return.
    let _ = kill_process(getpid(), Signal::KILL);
    Ok(())
}

/// As [`run`], with any engine.
pub(super) fn serve<E: Engine>(
    stream: UnixStream,
    make: impl FnOnce(&Board) -> Result<E, EngineFailure>,
) -> Result<(), ServeError> {
    let mut line = Line::new(stream);
    let board = match next(&mut line)? {
        None => return Ok(()),
        Some((Order::Start {}, Some(file))) => Board::of(file).map_err(EngineFailure::from)?,
        Some((order, _)) => return Err(ServeError::Order(format!("{order:?}"))),
    };
    let mut engine = make(&board)?;
    for visit in 1.. {
        let token = engine.arm(visit)?;
        line.answer(&Ready { visit, token }, Vec::new())?;
        match next(&mut line)? {
            None => {
                board.store(LEFT, visit);
                break;
            }
            Some((Order::Again {}, _)) => engine.wait()?,
            Some((order, _)) => return Err(ServeError::Order(format!("{order:?}"))),
        }
    }
    Ok(())
}

/// The daemon's next order, and what file came with it; none if it is gone.
fn next(line: &mut Line) -> Result<Option<(Order, Option<File>)>, WireError> {
    match line.next() {
        // It had not heard everything.
        Err(WireError::Socket(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        next => Ok(next?.map(|(order, fds)| (order, fds.into_iter().next().map(File::from)))),
    }
}
