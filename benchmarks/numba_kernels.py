"""The workloads as a good Numba user writes them: explicit loops, `prange` over rows or elements, no library tricks."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange


@njit(parallel=True)
def chain(a, b, c):
    out = np.empty_like(a)
    for i in prange(a.size):
        out[i] = ((a[i] * b[i] + c[i]) * a.dtype.type(2) - a[i]) / (b[i] + a.dtype.type(1.5))
    return out


@njit(parallel=True)
def black_scholes(s, k, t, v):
    one, half, two = s.dtype.type(1), s.dtype.type(0.5), s.dtype.type(2)
    rate, root = s.dtype.type(0.02), s.dtype.type(math.sqrt(0.5))
    call, put = np.empty_like(s), np.empty_like(s)
    for i in prange(s.size):
        deviation = v[i] * math.sqrt(t[i])
        d1 = (math.log(s[i] / k[i]) + (rate + v[i] * v[i] / two) * t[i]) / deviation
        d2 = d1 - deviation
        n1 = half + half * math.erf(d1 * root)
        n2 = half + half * math.erf(d2 * root)
        discounted = k[i] * math.exp(-rate * t[i])
        call[i] = s[i] * n1 - discounted * n2
        put[i] = discounted * (one - n2) - s[i] * (one - n1)
    return call, put


@njit(parallel=True)
def rosenbrock(x):
    n = x.size
    gradient = np.empty_like(x)
    value = 0.0
    for i in prange(n):
        g = 0.0
        if i < n - 1:
            d = x[i + 1] - x[i] * x[i]
            e = 1.0 - x[i]
            value += 100.0 * d * d + e * e
            g = -400.0 * d * x[i] - 2.0 * e
        if i > 0:
            g += 200.0 * (x[i] - x[i - 1] * x[i - 1])
        gradient[i] = g
    return value, gradient


@njit(parallel=True, fastmath={"reassoc", "contract"})
def sum_all(x):
    flat, total = x.ravel(), x.dtype.type(0)
    for i in prange(flat.size):
        total += flat[i]
    return total


@njit(parallel=True, fastmath={"reassoc", "contract"})
def sum_1(x):
    out = np.empty(x.shape[0], x.dtype)
    for i in prange(x.shape[0]):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        out[i] = total
    return out


BLOCKS = 16


@njit(parallel=True)
def sum_0(x):
    """Blocks of rows, each with a total of its own, so that memory is read in order."""
    n, parts = x.shape[0], np.zeros((BLOCKS, x.shape[1]), x.dtype)
    for b in prange(BLOCKS):
        part = parts[b]
        for i in range(b * n // BLOCKS, (b + 1) * n // BLOCKS):
            for j in range(x.shape[1]):
                part[j] += x[i, j]
    return parts.sum(0)


@njit
def mean_all(x):
    return sum_all(x) / x.dtype.type(x.size)


@njit
def mean_1(x):
    return sum_1(x) / x.dtype.type(x.shape[1])


@njit
def mean_0(x):
    return sum_0(x) / x.dtype.type(x.shape[0])


@njit(parallel=True, fastmath={"reassoc", "contract"})
def var_all(x):
    mean, flat, total = mean_all(x), x.ravel(), x.dtype.type(0)
    for i in prange(flat.size):
        d = flat[i] - mean
        total += d * d
    return total / x.dtype.type(flat.size)


@njit(fastmath={"reassoc", "contract"})
def row_moments(row):
    """Mean and variance of a row that is read twice."""
    m, total = row.dtype.type(row.size), row.dtype.type(0)
    for j in range(row.size):
        total += row[j]
    mean, total = total / m, row.dtype.type(0)
    for j in range(row.size):
        d = row[j] - mean
        total += d * d
    return mean, total / m


@njit(parallel=True)
def var_1(x):
    out = np.empty(x.shape[0], x.dtype)
    for i in prange(x.shape[0]):
        out[i] = row_moments(x[i])[1]
    return out


@njit(parallel=True)
def var_0(x):
    n, mean, parts = x.shape[0], mean_0(x), np.zeros((BLOCKS, x.shape[1]), x.dtype)
    for b in prange(BLOCKS):
        part = parts[b]
        for i in range(b * n // BLOCKS, (b + 1) * n // BLOCKS):
            for j in range(x.shape[1]):
                d = x[i, j] - mean[j]
                part[j] += d * d
    return parts.sum(0) / x.dtype.type(n)


@njit(fastmath={"reassoc", "contract"})
def row_softmax(row, out):
    """Writes the softmax of a row; gives the log of the sum of its exponentials."""
    top, total = row[0], row.dtype.type(0)
    for j in range(row.size):
        top = max(top, row[j])
    for j in range(row.size):
        e = math.exp(row[j] - top)
        out[j] = e
        total += e
    for j in range(row.size):
        out[j] /= total
    return top + math.log(total)


@njit(parallel=True)
def softmax(x):
    out = np.empty_like(x)
    for i in prange(x.shape[0]):
        row_softmax(x[i], out[i])
    return out


@njit(parallel=True)
def layer_norm(x, scale, shift):
    out = np.empty_like(x)
    for i in prange(x.shape[0]):
        mean, variance = row_moments(x[i])
        inverse = x.dtype.type(1) / math.sqrt(variance + x.dtype.type(1e-5))
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - mean) * inverse * scale[j] + shift[j]
    return out


@njit(parallel=True)
def logsumexp_grad(x):
    gradient, rows = np.empty_like(x), np.empty(x.shape[0], x.dtype)
    for i in prange(x.shape[0]):
        rows[i] = row_softmax(x[i], gradient[i])
    return rows.sum(), gradient


@njit(parallel=True)
def mandelbrot(re, im):
    """Row by row: the inner loop runs over points, so that it becomes vector code."""
    out = np.zeros_like(re)
    m = re.shape[1]
    for i in prange(re.shape[0]):
        cr, ci, count = re[i], im[i], out[i]
        zr, zi = np.zeros(m, re.dtype), np.zeros(m, re.dtype)
        for _ in range(50):
            for j in range(m):
                a, b = zr[j], zi[j]
                a, b = a * a - b * b + cr[j], np.float32(2) * a * b + ci[j]
                zr[j], zi[j] = a, b
                count[j] += np.float32(a * a + b * b <= np.float32(4))
    return out


@njit
def mlp_step(x, target, w1, b1, w2, b2, w3, b3):
    n = np.float32(x.shape[0])
    h1 = np.maximum(x @ w1 + b1, np.float32(0))
    h2 = np.maximum(h1 @ w2 + b2, np.float32(0))
    g = h2 @ w3 + b3
    loss = np.float32(0)
    for i in range(g.shape[0]):
        top = g[i].max()
        total = np.float32(0)
        for j in range(g.shape[1]):
            total += math.exp(g[i, j] - top)
        log_total = top + math.log(total)
        for j in range(g.shape[1]):
            loss -= target[i, j] * (g[i, j] - log_total)
            g[i, j] = (math.exp(g[i, j] - log_total) - target[i, j]) / n
    rate = np.float32(0.1)
    g2 = (g @ w3.T) * (h2 > 0)
    g1 = (g2 @ w2.T) * (h1 > 0)
    return (
        loss / n,
        w1 - rate * (x.T @ g1),
        b1 - rate * g1.sum(0),
        w2 - rate * (h1.T @ g2),
        b2 - rate * g2.sum(0),
        w3 - rate * (h2.T @ g),
        b3 - rate * g.sum(0),
    )


@njit
def call(a, b):
    return a * 2 + b
