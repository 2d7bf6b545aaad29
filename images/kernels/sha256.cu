// digests[i] = SHA-256 of the i-th message; all messages have msg_len bytes, packed one after another
__constant__ unsigned K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__device__ static unsigned rotr(unsigned x, unsigned n) { return (x >> n) | (x << (32 - n)); }

// Byte at position p of the padded message
__device__ static unsigned padded(const unsigned char *m, unsigned len, unsigned total, unsigned p)
{
    if (p < len)
        return m[p];
    if (p == len)
        return 0x80;
    if (p >= total - 8) {
        unsigned long long bits = (unsigned long long)len * 8;
        return (unsigned)(bits >> (8 * (total - 1 - p))) & 0xff;
    }
    return 0;
}

extern "C" __global__ void sha256(const unsigned char *msgs, unsigned msg_len, unsigned *digests, unsigned count)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const unsigned char *m = msgs + (unsigned long long)i * msg_len;
    unsigned total = (msg_len + 9 + 63) / 64 * 64;
    unsigned h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (unsigned at = 0; at < total; at += 64) {
        unsigned w[64];
        for (unsigned t = 0; t < 16; t++)
            w[t] = padded(m, msg_len, total, at + 4 * t) << 24 | padded(m, msg_len, total, at + 4 * t + 1) << 16 |
                   padded(m, msg_len, total, at + 4 * t + 2) << 8 | padded(m, msg_len, total, at + 4 * t + 3);
#pragma unroll 1
        for (unsigned t = 16; t < 64; t++) {
            unsigned s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
            unsigned s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
            w[t] = w[t - 16] + s0 + w[t - 7] + s1;
        }
        unsigned a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
#pragma unroll 1
        for (unsigned t = 0; t < 64; t++) {
            unsigned t1 = k + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
            unsigned t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            k = g; g = f; f = e; e = d + t1; d = c; c = b; b = a; a = t1 + t2;
        }
        h[0] += a; h[1] += b; h[2] += c; h[3] += d; h[4] += e; h[5] += f; h[6] += g; h[7] += k;
    }
    for (unsigned j = 0; j < 8; j++)
        digests[i * 8 + j] = __byte_perm(h[j], 0, 0x0123); // big-endian bytes in memory
}
