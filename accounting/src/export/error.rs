use super::calendar::show_time;
use crate::audit::Finding;
use crate::record::UnixNanos;
use crate::store::StoreError;
use thiserror::Error;

/// Why an export was refused, or failed.
#[derive(Debug, Error)]
pub enum ExportError {
    /// Nothing lies between its two ends.
    #[error("An export has to begin before it ends")]
    Empty,
    /// No entries of such a GPU.
    #[error("The ledger has no entries of such a GPU")]
    NoGpu,
    /// It asks for time that is not closed yet.
    #[error("GPU {gpu} of {node} is closed until {}; ask again later, for less, or for other nodes or GPUs", show_time(*until))]
    NotClosed {
        /// Of which node.
        node: String,
        /// Which GPU.
        gpu: String,
        /// Until when its windows are closed.
        until: UnixNanos,
    },
    /// It asks for what was discarded.
    #[error("GPU {gpu} of {node} is kept from {} on; what was before is discarded", show_time(*from))]
    Discarded {
        /// Of which node.
        node: String,
        /// Which GPU.
        gpu: String,
        /// From when on its windows are kept.
        from: UnixNanos,
    },
    /// FOCUS charges by the hour.
    #[error("FOCUS charges by the hour, and {} is not a full one", show_time(*at))]
    NotAnHour {
        /// The end in question.
        at: UnixNanos,
    },
    /// A FOCUS file has costs.
    #[error("FOCUS needs prices: a file with costs left out is none (--prices FILE)")]
    NoPrices,
    /// Time that nobody priced is not reported as if it cost nothing.
    #[error("The price list has no SKU in GPU-Seconds for a {model}")]
    NoSku {
        /// Model of the GPU.
        model: String,
    },
    /// A cost that the decimals do not hold exactly is not rounded.
    #[error("{quantity} at {price} have no exact cost")]
    Inexact {
        /// How much.
        quantity: String,
        /// At which price.
        price: String,
    },
    /// The ledger is not what was written.
    #[error("The ledger is damaged")]
    Damaged(#[source] Finding),
    /// More tenants than the caller takes.
    #[error("More than {max} tenants; ask for less time, or for one tenant")]
    TooMany {
        /// How many are taken.
        max: usize,
    },
    /// Whoever asked is gone.
    #[error("Given up")]
    GivenUp,
    /// It was built without.
    #[error("This build writes no Parquet; build it with the feature parquet")]
    NoParquet,
    /// The store.
    #[error("The ledger cannot be read")]
    Store(#[source] StoreError),
    /// The output.
    #[error("Writing the export failed")]
    Output(#[from] std::io::Error),
    /// The output, as CSV.
    #[error("Writing the CSV failed")]
    Csv(#[source] csv::Error),
    /// The output, as JSON.
    #[error("Writing the JSON failed")]
    Json(#[source] serde_json::Error),
    /// The output, as Parquet.
    #[cfg(feature = "parquet")]
    #[error("Writing the Parquet failed")]
    Parquet(#[from] parquet::errors::ParquetError),
}

// What the output itself refused is told as that, whoever wrote to it.
impl From<csv::Error> for ExportError {
    fn from(error: csv::Error) -> Self {
        if !error.is_io_error() {
            return Self::Csv(error);
        }
        match error.into_kind() {
            csv::ErrorKind::Io(error) => Self::Output(error),
            kind => Self::Output(std::io::Error::other(format!("{kind:?}"))),
        }
    }
}

impl From<serde_json::Error> for ExportError {
    fn from(error: serde_json::Error) -> Self {
        match error.is_io() {
            true => Self::Output(error.into()),
            false => Self::Json(error),
        }
    }
}
