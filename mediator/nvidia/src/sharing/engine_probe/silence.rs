//! Sources of engine state that do not answer any more, and another log after them.
//!
//! In: registers, and how the log was read at the last poll. Out: why the engine is not known.
//! Called by [`super::super::SharedGpu`] between two polls.

use super::{BusyTime, EngineProbe, EventLog, LogWatch, RmClient};

impl EngineProbe {
    /// Why the engine is not known any more; none while its sources answer.
    pub(in crate::sharing) fn silence(&self) -> Option<String> {
        let log = || self.refused.clone().or_else(|| self.watch.silence());
        self.signals.silence().or_else(log)
    }

    /// Goes on with another log, after a time of which nothing is known.
    ///
    /// # Errors
    /// Why the registers still do not answer.
    pub(in crate::sharing) fn begin_anew(
        &mut self,
        log: (RmClient, EventLog),
    ) -> Result<(), String> {
        self.signals.silence().map_or(Ok(()), Err)?;
        self.lost_before = self.losses();
        // The log of before is freed with its client.
        (self.client, self.log) = log;
        self.switches.begin_anew();
        self.meter.lost();
        self.watch = LogWatch::default();
        self.busy = BusyTime::default();
        self.open.clear();
        (self.refused, self.last) = (None, None);
        Ok(())
    }

    /// Records that the log lost, and that found no room.
    pub(in crate::sharing) fn losses(&self) -> (u64, u64) {
        let (missing, dropped) = self.lost_before;
        (
            missing + self.log.losses().missing,
            dropped + self.log.dropped(),
        )
    }
}
