//! SHA-256, to compare the kernel's digests with.
//! SOURCE: FIPS 180-4.

const INITIAL: [u32; 8] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];

const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// Digest of the message `byte(0), byte(1), .. byte(len - 1)`.
pub(crate) fn digest(len: u32, byte: impl Fn(u32) -> u8) -> [u32; 8] {
    let total = (len + 9).next_multiple_of(64);
    let padded = |p: u32| match p {
        _ if p < len => u32::from(byte(p)),
        _ if p == len => 0x80,
        _ if p >= total - 8 => ((u64::from(len) * 8) >> (8 * (total - 1 - p)) & 0xff) as u32,
        _ => 0,
    };
    let mut hash = INITIAL;
    for at in (0..total).step_by(64) {
        let mut w = [0u32; 64];
        for t in 0..16 {
            let p = at + 4 * t as u32;
            w[t] = padded(p) << 24 | padded(p + 1) << 16 | padded(p + 2) << 8 | padded(p + 3);
        }
        for t in 16..64 {
            let s0 = w[t - 15].rotate_right(7) ^ w[t - 15].rotate_right(18) ^ w[t - 15] >> 3;
            let s1 = w[t - 2].rotate_right(17) ^ w[t - 2].rotate_right(19) ^ w[t - 2] >> 10;
            w[t] = w[t - 16]
                .wrapping_add(s0)
                .wrapping_add(w[t - 7])
                .wrapping_add(s1);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = hash;
        for t in 0..64 {
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let t1 = h
                .wrapping_add(s1)
                .wrapping_add(e & f ^ !e & g)
                .wrapping_add(K[t])
                .wrapping_add(w[t]);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let t2 = s0.wrapping_add(a & b ^ a & c ^ b & c);
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
        }
        for (sum, word) in hash.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *sum = sum.wrapping_add(word);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_digests() {
        let empty = super::digest(0, |_| 0);
        assert_eq!(empty[0], 0xe3b0c442);
        assert_eq!(empty[7], 0x7852b855);
        let abc = super::digest(3, |p| b'a' + p as u8);
        assert_eq!(abc[0], 0xba7816bf);
        assert_eq!(abc[7], 0xf20015ad);
    }
}
