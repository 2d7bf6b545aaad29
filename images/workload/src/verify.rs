//! Every kernel and every command once, compared with the guest's own computation.

use crate::bench::Bench;
use crate::report::Report;
use crate::session::{During, Fail, Session};
use crate::{kernels, transfers};
use turnstile_abi::Platform;

/// Runs all tests `rounds` times, or until the VMM requests the end.
pub(crate) fn run<P: Platform>(
    session: &mut Session<'_, P>,
    rounds: u32,
    report: &mut Report,
) -> Result<(), Fail> {
    let mut bench = Bench::new(session)?;
    let mut round = 0;
    while (rounds == 0 || round < rounds) && !bench.session.stop() {
        for test in kernels::Test::ALL {
            bench.reset();
            let right = match test.kernel() {
                Some((file, name)) => {
                    let module = bench.session.module(file)?;
                    let kernel = bench.session.kernel(module, name)?;
                    let right = kernels::run(*test, &mut bench, kernel)?;
                    bench
                        .session
                        .device
                        .unload_module(module)
                        .during("Unloading a module")?;
                    right
                }
                None => transfers::run(*test, &mut bench)?,
            };
            report.count(right);
            if right {
                report.passed |= test.bit();
            }
            report.launches = bench.launches;
        }
        report.publish(bench.session.platform, &bench.session.boot);
        round += 1;
    }
    bench.close()
}
