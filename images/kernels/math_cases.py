#!/usr/bin/env python3
"""Writes a case file for each function of CUDA's single and double precision mathematics.

    pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime mpmath
    ./math_cases.py --nvcc NVCC --out FOLDER [NAME...]
    PTX_CORPUS=FOLDER cargo test --release -p turnstile-ptx --test corpus -- --nocapture

A case is a kernel that applies one function to 64 values, compiled by nvcc -O3 for sm_75, with the
results that mpmath computes with 50 digits. Tolerances are relative: 1e-5 for single precision,
1e-12 for double. SOURCE: CUDA Math API, single and double precision mathematical functions.
"""
import argparse
import pathlib
import random
import struct
import subprocess
import tempfile

import mpmath as m

m.mp.dps = 50
COUNT = 64
POSITIVE, UNIT, OPEN, LARGE, ANY = (0.05, 9), (-0.95, 0.95), (0.05, 0.95), (1.05, 9), (-3, 3)


def trunc(x):
    return m.floor(x) if x >= 0 else m.ceil(x)


def nearest(x):
    low = m.floor(x)
    twice = 2 * (x - low)
    return low + (twice > 1 or (twice == 1 and low % 2 == 1))


def away(x):
    return m.sign(x) * m.floor(abs(x) + m.mpf("0.5"))


def remainder(x, y):
    return x - y * nearest(x / y)


def exponent(x):
    return m.floor(m.log(abs(x), 2))


def normcdfinv(p):
    return -m.sqrt(2) * m.erfinv(1 - 2 * p)


# Name of the double function, expression over a, b, c, range of a, reference. The single one has an
# f behind its name.
BOTH = [
    ("acos", "(a)", UNIT, m.acos), ("acosh", "(a)", LARGE, m.acosh), ("asin", "(a)", UNIT, m.asin),
    ("asinh", "(a)", ANY, m.asinh), ("atan", "(a)", ANY, m.atan), ("atanh", "(a)", UNIT, m.atanh),
    ("cbrt", "(a)", POSITIVE, m.cbrt), ("ceil", "(a)", ANY, m.ceil), ("cos", "(a)", ANY, m.cos),
    ("cosh", "(a)", ANY, m.cosh), ("cospi", "(a)", ANY, lambda a: m.cos(m.pi * a)),
    ("cyl_bessel_i0", "(a)", ANY, lambda a: m.besseli(0, a)),
    ("cyl_bessel_i1", "(a)", ANY, lambda a: m.besseli(1, a)),
    ("erf", "(a)", ANY, m.erf), ("erfc", "(a)", ANY, m.erfc), ("erfinv", "(a)", UNIT, m.erfinv),
    ("erfcinv", "(a)", OPEN, lambda a: m.erfinv(1 - a)),
    ("erfcx", "(a)", ANY, lambda a: m.exp(a * a) * m.erfc(a)),
    ("exp", "(a)", ANY, m.exp), ("exp10", "(a)", ANY, lambda a: m.power(10, a)),
    ("exp2", "(a)", ANY, lambda a: m.power(2, a)), ("expm1", "(a)", ANY, m.expm1),
    ("fabs", "(a)", ANY, abs), ("floor", "(a)", ANY, m.floor),
    ("j0", "(a)", POSITIVE, lambda a: m.besselj(0, a)),
    ("j1", "(a)", POSITIVE, lambda a: m.besselj(1, a)),
    ("jn", "(2, a)", POSITIVE, lambda a: m.besselj(2, a)),
    ("y0", "(a)", POSITIVE, lambda a: m.bessely(0, a)),
    ("y1", "(a)", POSITIVE, lambda a: m.bessely(1, a)),
    ("yn", "(2, a)", POSITIVE, lambda a: m.bessely(2, a)),
    ("lgamma", "(a)", POSITIVE, m.loggamma), ("tgamma", "(a)", POSITIVE, m.gamma),
    ("log", "(a)", POSITIVE, m.log), ("log10", "(a)", POSITIVE, m.log10),
    ("log1p", "(a)", POSITIVE, m.log1p), ("log2", "(a)", POSITIVE, lambda a: m.log(a, 2)),
    ("logb", "(a)", ANY, exponent), ("nearbyint", "(a)", ANY, nearest),
    ("normcdf", "(a)", ANY, m.ncdf), ("normcdfinv", "(a)", OPEN, normcdfinv),
    ("rcbrt", "(a)", POSITIVE, lambda a: 1 / m.cbrt(a)), ("rint", "(a)", ANY, nearest),
    ("round", "(a)", ANY, away), ("rsqrt", "(a)", POSITIVE, lambda a: 1 / m.sqrt(a)),
    ("sin", "(a)", ANY, m.sin), ("sinh", "(a)", ANY, m.sinh),
    ("sinpi", "(a)", ANY, lambda a: m.sin(m.pi * a)), ("sqrt", "(a)", POSITIVE, m.sqrt),
    ("tan", "(a)", UNIT, m.tan), ("tanh", "(a)", ANY, m.tanh), ("trunc", "(a)", ANY, trunc),
    ("atan2", "(a, b)", ANY, m.atan2), ("copysign", "(a, b)", ANY, lambda a, b: abs(a) * m.sign(b)),
    ("fdim", "(a, b)", ANY, lambda a, b: max(a - b, m.mpf(0))),
    ("fma", "(a, b, c)", ANY, lambda a, b, c: a * b + c),
    ("fmax", "(a, b)", ANY, max), ("fmin", "(a, b)", ANY, min),
    ("fmod", "(a, b)", ANY, lambda a, b: a - b * trunc(a / b)),
    ("hypot", "(a, b)", ANY, m.hypot), ("rhypot", "(a, b)", ANY, lambda a, b: 1 / m.hypot(a, b)),
    ("norm3d", "(a, b, c)", ANY, lambda a, b, c: m.sqrt(a * a + b * b + c * c)),
    ("rnorm3d", "(a, b, c)", ANY, lambda a, b, c: 1 / m.sqrt(a * a + b * b + c * c)),
    ("norm4d", "(a, b, c, a)", ANY, lambda a, b, c: m.sqrt(2 * a * a + b * b + c * c)),
    ("rnorm4d", "(a, b, c, a)", ANY, lambda a, b, c: 1 / m.sqrt(2 * a * a + b * b + c * c)),
    ("pow", "(a, b)", POSITIVE, m.power), ("remainder", "(a, b)", ANY, remainder),
    ("ldexp", "(a, 3)", ANY, lambda a: a * 8), ("scalbn", "(a, -2)", ANY, lambda a: a / 4),
    ("scalbln", "(a, 5L)", ANY, lambda a: a * 32),
    ("ilogb", "(a)", ANY, exponent), ("lrint", "(a)", ANY, nearest), ("lround", "(a)", ANY, away),
    ("llrint", "(a)", ANY, nearest), ("llround", "(a)", ANY, away),
]
# Fast ones, of single precision alone, with a tolerance of their own.
FAST = [
    ("__cosf", "(a)", ANY, m.cos), ("__sinf", "(a)", ANY, m.sin), ("__tanf", "(a)", UNIT, m.tan),
    ("__expf", "(a)", ANY, m.exp), ("__exp10f", "(a)", ANY, lambda a: m.power(10, a)),
    ("__logf", "(a)", LARGE, m.log), ("__log2f", "(a)", LARGE, lambda a: m.log(a, 2)),
    ("__log10f", "(a)", LARGE, m.log10), ("__powf", "(a, b)", POSITIVE, m.power),
    ("__fdividef", "(a, b)", ANY, lambda a, b: a / b), ("fdividef", "(a, b)", ANY, lambda a, b: a / b),
    ("__frsqrt_rn", "(a)", POSITIVE, lambda a: 1 / m.sqrt(a)),
    ("__saturatef", "(a)", ANY, lambda a: min(max(a, m.mpf(0)), m.mpf(1))),
]
# Statements with one result or two, in p and q; %s is the end of the name, %t the type.
BODIES = [
    ("isfinite", "p = isfinite(a);", ANY, lambda a: 1), ("isinf", "p = isinf(a);", ANY, lambda a: 0),
    ("isnan", "p = isnan(a);", ANY, lambda a: 0),
    ("signbit", "p = signbit(a) != 0;", ANY, lambda a: int(a < 0)),
    ("nan", 'p = nan%s("");', ANY, lambda a: m.nan),
    ("nextafter", "p = nextafter%s(a, b);", ANY, lambda a: a),
    ("norm", "%t v[3] = {a, b, c}; p = norm%s(3, v);", ANY,
     lambda a, b, c: m.sqrt(a * a + b * b + c * c)),
    ("rnorm", "%t v[3] = {a, b, c}; p = rnorm%s(3, v);", ANY,
     lambda a, b, c: 1 / m.sqrt(a * a + b * b + c * c)),
    ("remquo", "int e; p = remquo%s(a, b, &e); q = ((e % 8) + 8) % 8;", ANY,
     lambda a, b: (remainder(a, b), nearest(a / b) % 8)),
    ("sincos", "sincos%s(a, &p, &q);", ANY, lambda a: (m.sin(a), m.cos(a))),
    ("sincospi", "sincospi%s(a, &p, &q);", ANY, lambda a: (m.sin(m.pi * a), m.cos(m.pi * a))),
    ("modf", "p = modf%s(a, &q);", ANY, lambda a: (a - trunc(a), trunc(a))),
    ("frexp", "int e; p = frexp%s(a, &e); q = e;", POSITIVE,
     lambda a: (a / m.power(2, exponent(a) + 1), exponent(a) + 1)),
]

SOURCE = """extern "C" __global__ void k(%(t)s *out, const %(t)s *x, const %(t)s *y, const %(t)s *z) {
    int i = threadIdx.x;
    %(t)s a = x[i], b = y[i], c = z[i], p = 0, q = 0;
    %(body)s
    out[i] = p;
    out[i + %(count)d] = q;
    (void)b; (void)c;
}
"""


def write(args, name, single, body, bounds, reference, tolerance):
    """One case: compiles the kernel, computes its results, and writes the file."""
    letter, kind = ("f", "float") if single else ("d", "double")
    draw = random.Random(name)
    column = lambda low, high: [draw.uniform(low, high) for _ in range(COUNT)]
    pack = lambda values: struct.pack(f"<{len(values)}{letter}", *values)
    exact = lambda values: struct.unpack(f"<{len(values)}{letter}", pack(values))
    a, b, c = (exact(column(*bounds)), exact(column(0.2, 3)), exact(column(-3, 3)))
    arity = reference.__code__.co_argcount if hasattr(reference, "__code__") else None
    results = []
    for values in zip(a, b, c):
        numbers = [m.mpf(value) for value in values]
        for count in [arity] if arity in (1, 2, 3) else (1, 2):
            try:
                results.append(reference(*numbers[:count]))
                break
            except TypeError:
                continue
    first = [one[0] if isinstance(one, tuple) else one for one in results]
    second = [one[1] if isinstance(one, tuple) else 0 for one in results]
    want = pack([float(one) for one in first + second])
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "k.cu")
        source.write_text(SOURCE % {"t": kind, "body": body, "count": COUNT})
        ptx = source.with_suffix(".ptx")
        subprocess.run([args.nvcc, "-ptx", "-O3", "-arch=compute_75", "--diag-suppress=550", "-o", ptx, source], check=True)
        text = ptx.read_text()
    head = [f"launch k 1 1 1 {COUNT} 1 1 0", f"out {letter}{32 if single else 64} {tolerance} - {want.hex()}"]
    head = [line.replace("out d64", "out f64") for line in head]
    head += [f"in {pack(values).hex()}" for values in (a, b, c)]
    pathlib.Path(args.out, f"{name}.case").write_text("\n".join(head) + "\n---\n" + text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--out", required=True)
    parser.add_argument("names", nargs="*", help="functions; all without one")
    args = parser.parse_args()
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    cases = []
    for single in (False, True):
        end, tolerance = ("f", "1e-05") if single else ("", "1e-12")
        for name, call, bounds, reference in BOTH:
            cases.append((name + end, single, f"p = {name}{end}{call};", bounds, reference, tolerance))
        for name, body, bounds, reference in BODIES:
            body = body.replace("%s", end).replace("%t", "float" if single else "double")
            cases.append((name + end, single, body, bounds, reference, tolerance))
    for name, call, bounds, reference in FAST:
        cases.append((name, True, f"p = {name}{call};", bounds, reference, "1e-4"))
    chosen = [case for case in cases if not args.names or case[0] in args.names]
    for done, case in enumerate(chosen, 1):
        write(args, *case)
        print(f"\r{done} of {len(chosen)}: {case[0]:20}", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
