//! The process of the preemptor.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;

use rustix::process::{Signal, getpid, kill_process};
use turnstile_vmm::wire::WireError;

use super::engine::{CudaEngine, Engine, EngineFailure};
use super::shared_page::{LEFT, SharedPage};
use super::{Order, Ready};
use crate::line::Line;

/// Why a preemptor ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The daemon violated the protocol.
    #[error("Talking to the daemon failed")]
    Wire(#[from] WireError),
    /// The GPU refuses permanently.
    #[error("The preemptor has no GPU")]
    Engine(#[from] EngineFailure),
    /// The daemon sent an order that is not valid at this point.
    #[error("The daemon's order does not belong here: {0}")]
    Order(String),
}

/// Runs the preemptor of the GPU with CUDA's number `device` on the connection `stream`, until the
/// daemon ends it. Then it kills its own process: the vendor's library would wait for an occupancy
/// for which no process rings.
///
/// # Errors
/// If the GPU refuses.
pub fn run(stream: UnixStream, device: u32) -> Result<(), ServeError> {
    serve(stream, |page| CudaEngine::new(device, page)).or_else(|error| match error {
        ServeError::Engine(_) => Err(error),
        ServeError::Wire(_) | ServeError::Order(_) => {
            log::error!("{error}");
            Ok(())
        }
    })?;
    // The signal is for this process: it cannot be refused, and does not return.
    let _ = kill_process(getpid(), Signal::KILL);
    Ok(())
}

/// As [`run`], with any engine.
pub(super) fn serve<E: Engine>(
    stream: UnixStream,
    make: impl FnOnce(&SharedPage) -> Result<E, EngineFailure>,
) -> Result<(), ServeError> {
    let mut line = Line::new(stream);
    let page = match next(&mut line)? {
        None => return Ok(()),
        Some((Order::Start {}, Some(file))) => SharedPage::of(file).map_err(EngineFailure::from)?,
        Some((order, _)) => return Err(ServeError::Order(format!("{order:?}"))),
    };
    let mut engine = make(&page)?;
    for visit in 1.. {
        let token = engine.arm(visit)?;
        line.answer(&Ready { visit, token }, Vec::new())?;
        match next(&mut line)? {
            None => {
                page.store(LEFT, visit);
                break;
            }
            Some((Order::Again {}, _)) => engine.wait()?,
            Some((order, _)) => return Err(ServeError::Order(format!("{order:?}"))),
        }
    }
    Ok(())
}

/// The daemon's next order, and its file if there is one; None if the daemon is gone.
fn next(line: &mut Line) -> Result<Option<(Order, Option<File>)>, WireError> {
    match line.next() {
        // The daemon is gone, and had not read everything.
        Err(WireError::Socket(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        next => Ok(next?.map(|(order, fds)| (order, fds.into_iter().next().map(File::from)))),
    }
}
