//! The policies on a simulated GPU: laws, shares, attacks, and what the paper's literal rule does.

mod accounts;
mod adversary;
mod attacks;
mod found;
mod laws;
mod load;
mod patience;
mod shares;
mod sim;
