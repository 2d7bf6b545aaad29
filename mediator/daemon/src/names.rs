//! Names of tenants and accounts.

/// Longest name of a tenant or an account, in bytes. SOURCE: names of Kubernetes are subdomains of
/// DNS (RFC 1123), which have 253 at most.
pub const NAME_BYTES_MAX: usize = 253;

/// What a name consists of, for messages.
pub const NAME_RULE: &str = "1 to 253 of A-Z a-z 0-9 . _ + -";

/// Whether a tenant may have this name.
pub fn is_tenant_name(name: &str) -> bool {
    let permitted = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(permitted)
}
