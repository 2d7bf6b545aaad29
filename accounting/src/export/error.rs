use super::calendar::show_time;
use crate::audit::Finding;
use crate::record::UnixNanos;
use crate::store::StoreError;
use thiserror::Error;

/// Why an export was refused, or failed.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The stretch of time is empty.
    #[error("An export has to begin before it ends")]
    Empty,
    /// No entries of such a GPU.
    #[error("The ledger has no entries of such a GPU; the first window may not be closed yet")]
    NoGpu,
    /// No such tenant.
    #[error("The ledger knows no tenant {tenant:?}; --allow-gaps exports nothing for it")]
    NoTenant {
        /// Its name or id.
        tenant: String,
    },
    /// The request covers time before the ledger.
    #[error("The ledger of GPU {gpu} of {node} begins at {}; --allow-gaps exports what is there", show_time(*from))]
    NotStarted {
        /// The node.
        node: String,
        /// The GPU.
        gpu: String,
        /// The beginning of its first entry.
        from: UnixNanos,
    },
    /// The request covers time that is not closed yet.
    #[error("GPU {gpu} of {node} is closed until {}; ask again later, for less, or for other nodes or GPUs; --allow-gaps exports what is there", show_time(*until))]
    NotClosed {
        /// The node.
        node: String,
        /// The GPU.
        gpu: String,
        /// The time until which its windows are closed.
        until: UnixNanos,
    },
    /// The request covers discarded time.
    #[error("GPU {gpu} of {node} is kept from {} on; what was before is discarded; --allow-gaps exports what is there", show_time(*from))]
    Discarded {
        /// The node.
        node: String,
        /// The GPU.
        gpu: String,
        /// The time from which on its windows are kept.
        from: UnixNanos,
    },
    /// FOCUS charges by the hour; an end of the request is not a full hour.
    #[error("FOCUS charges by the hour, and {} is not a full one", show_time(*at))]
    NotAnHour {
        /// That end.
        at: UnixNanos,
    },
    /// A FOCUS export without a price list: the file has to contain costs.
    #[error("FOCUS needs prices: a file with costs left out is none (--prices FILE)")]
    NoPrices,
    /// Time without a price is not reported as if it cost nothing.
    #[error("The price list has no SKU in GPU-Seconds for a {model}")]
    NoSku {
        /// Model of the GPU.
        model: String,
    },
    /// A cost that decimals cannot represent exactly; it is not rounded.
    #[error("{quantity} at {price} have no exact cost")]
    Inexact {
        /// The quantity.
        quantity: String,
        /// The price.
        price: String,
    },
    /// The ledger's content is not what was written.
    #[error("The ledger is damaged")]
    Damaged(#[source] Finding),
    /// More tenants than the caller takes.
    #[error("More than {max} tenants; ask for less time, or for one tenant")]
    TooMany {
        /// The most tenants that are accepted.
        max: usize,
    },
    /// The caller cancelled the request.
    #[error("Given up")]
    GivenUp,
    /// The build does not include Parquet.
    #[error("This build writes no Parquet; build it with the feature parquet")]
    NoParquet,
    /// Reading the store failed.
    #[error("The ledger cannot be read")]
    Store(#[source] StoreError),
    /// Writing the output failed.
    #[error("Writing the export failed")]
    Output(#[from] std::io::Error),
    /// Writing the CSV failed.
    #[error("Writing the CSV failed")]
    Csv(#[source] csv::Error),
    /// Writing the JSON failed.
    #[error("Writing the JSON failed")]
    Json(#[source] serde_json::Error),
    /// Writing the Parquet failed.
    #[cfg(feature = "parquet")]
    #[error("Writing the Parquet failed")]
    Parquet(#[from] parquet::errors::ParquetError),
}

// An error of the output itself is `Output`, whichever writer returned it.
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
