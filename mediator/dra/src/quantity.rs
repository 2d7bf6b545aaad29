//! Quantities of Kubernetes that are whole numbers, as texts and back.
//!
//! SOURCE: kubernetes/apimachinery, pkg/api/resource/quantity.go: decimal and binary suffixes.

/// The whole number that a quantity is; none if it has a fraction, is negative or too large.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let factor: u64 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        exponent => {
            let exponent = exponent.strip_prefix(['e', 'E'])?;
            10_u64.checked_pow(exponent.parse().ok()?)?
        }
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// A number of bytes in the form in which the API server keeps it: another one of the same number
/// would differ from what was written.
pub(crate) fn bytes(number: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let divides = |power: &usize| number.is_multiple_of(1 << (10 * power));
    let power = (1..suffixes.len()).take_while(divides).last().unwrap_or(0);
    format!("{}{}", number >> (10 * power), suffixes[power])
}

#[cfg(test)]
mod tests {
    use super::{bytes, whole};

    #[test]
    fn bytes_have_the_largest_unit_that_leaves_no_rest() {
        let texts = [
            256 << 20,
            141 << 30,
            81_558 << 20,
            1 << 50,
            1_000,
            262_144_000,
        ]
        .map(bytes);
        assert_eq!(texts, ["256Mi", "141Gi", "81558Mi", "1Pi", "1000", "250Mi"]);
        assert!(
            [2 << 20, 85_520_809_984]
                .iter()
                .all(|n| whole(&bytes(*n)) == Some(*n))
        );
    }

    #[test]
    fn quantity_is_a_whole_number_or_none() {
        let of = ["50", "10Gi", "1500M", "2e3", "0", "1E2"].map(whole);
        let expected = [50, 10 << 30, 1_500_000_000, 2_000, 0, 100].map(Some);
        assert_eq!(of, expected);
        for text in [
            "",
            "Gi",
            "500m",
            "-1",
            "1.5",
            "1e-3",
            "1e99",
            "99999999Pi",
            "5 ",
            "1i",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
