// Local response normalisation across channels: y = x scale^-beta, scale = k + alpha / size * sum of x^2.

extern "C" __global__ void response_forward(const T* x, T* y, A* scale, Index rows, Index C, Index size,
                                            double alpha, double beta, double k) {
    const Index reach = size / 2;
    EACH_ROW(row, rows) {
        EACH_CHANNEL(c, C, 1) {
            const Index end = c + reach < C ? c + reach : C - 1;
            A sum = 0;
            for (Index j = c > reach ? c - reach : 0; j <= end; ++j) {
                const A value = get(x[row * C + j]);
                sum += value * value;
            }
            const A held = (A)k + (A)(alpha / size) * sum;
            scale[row * C + c] = held;
            y[row * C + c] = put(get(x[row * C + c]) * pow(held, (A)-beta));
        }
    }
}

// dx = dy scale^-beta - 2 alpha beta / size * x * (dy y / scale summed over neighbouring channels).
extern "C" __global__ void response_backward(const T* dy, const T* x, const T* y, const A* scale, T* dx, Index rows,
                                             Index C, Index size, double alpha, double beta) {
    const Index reach = size / 2;
    EACH_ROW(row, rows) {
        EACH_CHANNEL(c, C, 1) {
            const Index end = c + reach < C ? c + reach : C - 1;
            A sum = 0;
            for (Index j = c > reach ? c - reach : 0; j <= end; ++j) {
                const Index place = row * C + j;
                sum += get(dy[place]) * get(y[place]) / scale[place];
            }
            const Index here = row * C + c;
            dx[here] = put(get(dy[here]) * pow(scale[here], (A)-beta) -
                           (A)(2 * alpha * beta / size) * get(x[here]) * sum);
        }
    }
}
