//! The policies on a simulated GPU: laws, shares, attacks, and the effect of the paper's literal
//! rule.

mod accounts;
mod adversary;
mod attacks;
mod found;
mod laws;
mod load;
mod patience;
mod scale;
mod shares;
mod sim;
