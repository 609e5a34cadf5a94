// Pooling, NHWC. Backward gathers: each input pixel sums over the windows that contain it.

struct Place {
    Index n;
    int v, h;
};

__device__ inline Place locate(Index row, Index rows, Index columns) {
    const Index image = rows * columns, rest = row % image;
    return {row / image, (int)(rest / columns), (int)(rest % columns)};
}

struct Span {
    int begin, end;
};

// Offsets within window p that are in the image.
__device__ inline Span inside(int p, int stride, int padding, int kernel, int size) {
    const int origin = p * stride - padding;
    return {origin < 0 ? -origin : 0, origin + kernel > size ? size - origin : kernel};
}

// Windows that contain pixel h.
__device__ inline Span windows(int h, int stride, int padding, int kernel, int count) {
    const int low = h + padding - kernel, high = (h + padding) / stride + 1;
    return {low < 0 ? 0 : low / stride + 1, high < count ? high : count};
}

template <int V>
__device__ void max_rows(const T* x, T* y, void* where, Index batch, Index H, Index W, Index C, Index P, Index Q,
                         Index R, Index S, Index sv, Index sh, Index pv, Index ph, bool wide) {
    EACH_ROW(row, batch * P * Q) {
        const Place at = locate(row, P, Q);
        const Span vertical = inside(at.v, sv, pv, R, H), horizontal = inside(at.h, sh, ph, S, W);
        const T* corner = x + ((at.n * H + at.v * sv - pv) * W + at.h * sh - ph) * C;
        EACH_CHANNEL(c, C, V) {
            Vector<V> best = load<V>(corner + (vertical.begin * W + horizontal.begin) * C + c);
            int chosen[V];
            for (int k = 0; k < V; ++k) chosen[k] = vertical.begin * S + horizontal.begin;
            for (int r = vertical.begin; r < vertical.end; ++r) {
                for (int s = horizontal.begin; s < horizontal.end; ++s) {
                    const Vector<V> pixel = load<V>(corner + (r * W + s) * C + c);
                    for (int k = 0; k < V; ++k) {
                        const A value = get(pixel.v[k]), held = get(best.v[k]);
                        if (value > held || (value != value && held == held)) {
                            best.v[k] = pixel.v[k];
                            chosen[k] = r * S + s;
                        }
                    }
                }
            }
            store<V>(y + row * C + c, best);
            for (int k = 0; k < V; ++k) {
                if (wide) ((unsigned short*)where)[row * C + c + k] = chosen[k];
                else ((unsigned char*)where)[row * C + c + k] = chosen[k];
            }
        }
    }
}

// where: index, within the window, of the first largest pixel; 16 bits if wide, else 8.
extern "C" __global__ void max_forward(const T* x, T* y, void* where, Index batch, Index H, Index W, Index C,
                                       Index P, Index Q, Index R, Index S, Index sv, Index sh, Index pv, Index ph,
                                       Index wide) {
    if (C % PACK == 0 && aligned(x) && aligned(y))
        max_rows<PACK>(x, y, where, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph, wide);
    else max_rows<1>(x, y, where, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph, wide);
}

template <int V>
__device__ void max_gather(const T* dy, const void* where, T* dx, Index batch, Index H, Index W, Index C, Index P,
                           Index Q, Index R, Index S, Index sv, Index sh, Index pv, Index ph, bool wide) {
    EACH_ROW(row, batch * H * W) {
        const Place at = locate(row, H, W);
        const Span vertical = windows(at.v, sv, pv, R, P), horizontal = windows(at.h, sh, ph, S, Q);
        EACH_CHANNEL(c, C, V) {
            A sum[V];
            for (int k = 0; k < V; ++k) sum[k] = 0;
            for (int p = vertical.begin; p < vertical.end; ++p) {
                for (int q = horizontal.begin; q < horizontal.end; ++q) {
                    const int mine = (at.v + pv - p * sv) * S + at.h + ph - q * sh;
                    const Index place = ((at.n * P + p) * Q + q) * C + c;
                    const Vector<V> gradient = load<V>(dy + place);
                    for (int k = 0; k < V; ++k) {
                        const int chosen = wide ? ((const unsigned short*)where)[place + k]
                                                : ((const unsigned char*)where)[place + k];
                        if (chosen == mine) sum[k] += get(gradient.v[k]);
                    }
                }
            }
            Vector<V> out;
            for (int k = 0; k < V; ++k) out.v[k] = put(sum[k]);
            store<V>(dx + row * C + c, out);
        }
    }
}

extern "C" __global__ void max_backward(const T* dy, const void* where, T* dx, Index batch, Index H, Index W,
                                        Index C, Index P, Index Q, Index R, Index S, Index sv, Index sh, Index pv,
                                        Index ph, Index wide) {
    if (C % PACK == 0 && aligned(dy) && aligned(dx))
        max_gather<PACK>(dy, where, dx, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph, wide);
    else max_gather<1>(dy, where, dx, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph, wide);
}

// 1 / the window's size clipped to the padded image.
__device__ inline A share(int p, int q, Index R, Index S, Index sv, Index sh, Index height, Index width) {
    const Index tall = p * sv + R > height ? height - p * sv : R, broad = q * sh + S > width ? width - q * sh : S;
    return (A)1 / (A)(tall * broad);
}

template <int V>
__device__ void average_rows(const T* x, T* y, Index batch, Index H, Index W, Index C, Index P, Index Q, Index R,
                             Index S, Index sv, Index sh, Index pv, Index ph) {
    EACH_ROW(row, batch * P * Q) {
        const Place at = locate(row, P, Q);
        const Span vertical = inside(at.v, sv, pv, R, H), horizontal = inside(at.h, sh, ph, S, W);
        const A part = share(at.v, at.h, R, S, sv, sh, H + 2 * pv, W + 2 * ph);
        const T* corner = x + ((at.n * H + at.v * sv - pv) * W + at.h * sh - ph) * C;
        EACH_CHANNEL(c, C, V) {
            A sum[V];
            for (int k = 0; k < V; ++k) sum[k] = 0;
            for (int r = vertical.begin; r < vertical.end; ++r) {
                for (int s = horizontal.begin; s < horizontal.end; ++s) {
                    const Vector<V> pixel = load<V>(corner + (r * W + s) * C + c);
                    for (int k = 0; k < V; ++k) sum[k] += get(pixel.v[k]);
                }
            }
            Vector<V> out;
            for (int k = 0; k < V; ++k) out.v[k] = put(sum[k] * part);
            store<V>(y + row * C + c, out);
        }
    }
}

extern "C" __global__ void average_forward(const T* x, T* y, Index batch, Index H, Index W, Index C, Index P,
                                           Index Q, Index R, Index S, Index sv, Index sh, Index pv, Index ph) {
    if (C % PACK == 0 && aligned(x) && aligned(y))
        average_rows<PACK>(x, y, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph);
    else average_rows<1>(x, y, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph);
}

template <int V>
__device__ void average_gather(const T* dy, T* dx, Index batch, Index H, Index W, Index C, Index P, Index Q,
                               Index R, Index S, Index sv, Index sh, Index pv, Index ph) {
    EACH_ROW(row, batch * H * W) {
        const Place at = locate(row, H, W);
        const Span vertical = windows(at.v, sv, pv, R, P), horizontal = windows(at.h, sh, ph, S, Q);
        EACH_CHANNEL(c, C, V) {
            A sum[V];
            for (int k = 0; k < V; ++k) sum[k] = 0;
            for (int p = vertical.begin; p < vertical.end; ++p) {
                for (int q = horizontal.begin; q < horizontal.end; ++q) {
                    const A part = share(p, q, R, S, sv, sh, H + 2 * pv, W + 2 * ph);
                    const Vector<V> gradient = load<V>(dy + ((at.n * P + p) * Q + q) * C + c);
                    for (int k = 0; k < V; ++k) sum[k] += get(gradient.v[k]) * part;
                }
            }
            Vector<V> out;
            for (int k = 0; k < V; ++k) out.v[k] = put(sum[k]);
            store<V>(dx + row * C + c, out);
        }
    }
}

extern "C" __global__ void average_backward(const T* dy, T* dx, Index batch, Index H, Index W, Index C, Index P,
                                            Index Q, Index R, Index S, Index sv, Index sh, Index pv, Index ph) {
    if (C % PACK == 0 && aligned(dy) && aligned(dx))
        average_gather<PACK>(dy, dx, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph);
    else average_gather<1>(dy, dx, batch, H, W, C, P, Q, R, S, sv, sh, pv, ph);
}

// y (batch, C): mean over the pixels of an image.
extern "C" __global__ void global_forward(const T* x, T* y, Index batch, Index pixels, Index C) {
    EACH_ROW(n, batch) {
        EACH_CHANNEL(c, C, 1) {
            A sum = 0;
            for (Index pixel = 0; pixel < pixels; ++pixel) sum += get(x[(n * pixels + pixel) * C + c]);
            y[n * C + c] = put(sum / (A)pixels);
        }
    }
}

extern "C" __global__ void global_backward(const T* dy, T* dx, Index batch, Index pixels, Index C) {
    EACH_ROW(row, batch * pixels) {
        EACH_CHANNEL(c, C, 1) { dx[row * C + c] = put(get(dy[row / pixels * C + c]) / (A)pixels); }
    }
}
