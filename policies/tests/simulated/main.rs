//! The policies on a simulated GPU: laws, shares, and what the paper's literal rule does.

mod laws;
mod load;
mod shares;
mod sim;
