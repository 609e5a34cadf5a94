// Copies of windows (im2col) for layers computed as matrix products: locally connected layers, and convolutions in
// float64, which cuDNN does not support.

// columns (batch P Q, R S D): the windows of channels first to first + D of x (batch, H, W, C).
extern "C" __global__ void gather_windows(const T* x, T* columns, Index batch, Index H, Index W, Index C, Index P,
                                          Index Q, Index R, Index S, Index sv, Index sh, Index pv, Index ph,
                                          Index first, Index D) {
    const Index span = R * S * D;
    for (Index i = first_thread(); i < batch * P * Q * span; i += all_threads()) {
        const Index row = i / span, within = i % span;
        const Index n = row / (P * Q), p = row / Q % P, q = row % Q;
        const Index h = p * sv - pv + within / (S * D), w = q * sh - ph + within / D % S;
        const bool inside = h >= 0 && h < H && w >= 0 && w < W;
        columns[i] = inside ? x[((n * H + h) * W + w) * C + first + within % D] : put(0);
    }
}

// dx: each pixel is the sum of its copies in columns, the transpose of gather_windows.
extern "C" __global__ void scatter_windows(const T* columns, T* dx, Index batch, Index H, Index W, Index C, Index P,
                                           Index Q, Index R, Index S, Index sv, Index sh, Index pv, Index ph,
                                           Index first, Index D) {
    for (Index i = first_thread(); i < batch * H * W * D; i += all_threads()) {
        const Index c = i % D, w = i / D % W, h = i / (D * W) % H, n = i / (D * W * H);
        A sum = 0;
        for (Index r = 0; r < R; ++r) {
            const Index p = (h + pv - r) / sv;
            if (h + pv < r || (h + pv - r) % sv || p >= P) continue;
            for (Index s = 0; s < S; ++s) {
                const Index q = (w + ph - s) / sh;
                if (w + ph < s || (w + ph - s) % sh || q >= Q) continue;
                sum += get(columns[((((n * P + p) * Q + q) * R + r) * S + s) * D + c]);
            }
        }
        dx[((n * H + h) * W + w) * C + first + c] = put(sum);
    }
}
