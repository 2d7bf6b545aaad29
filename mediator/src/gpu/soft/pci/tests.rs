//! The face by itself, as a bus sees it.
