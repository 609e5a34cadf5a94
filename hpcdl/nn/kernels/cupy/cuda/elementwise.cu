// ReLU, sigmoid, sums, and copies of channels.

// y = max(x, 0); propagates NaN.
extern "C" __global__ void relu_forward(const T* x, T* y, Index n) {
    const Index packs = aligned(x) && aligned(y) ? n / PACK : 0;
    for (Index i = first_thread(); i < packs; i += all_threads()) {
        Vector<PACK> values = load<PACK>(x + i * PACK);
        for (int k = 0; k < PACK; ++k) values.v[k] = get(values.v[k]) < 0 ? put(0) : values.v[k];
        store<PACK>(y + i * PACK, values);
    }
    for (Index i = packs * PACK + first_thread(); i < n; i += all_threads()) y[i] = get(x[i]) < 0 ? put(0) : x[i];
}

// dz = dy where y > 0, else 0.
extern "C" __global__ void rectify(const T* dy, const T* y, T* dz, Index n) {
    const Index packs = aligned(dy) && aligned(y) && aligned(dz) ? n / PACK : 0;
    for (Index i = first_thread(); i < packs; i += all_threads()) {
        Vector<PACK> gradient = load<PACK>(dy + i * PACK);
        const Vector<PACK> value = load<PACK>(y + i * PACK);
        for (int k = 0; k < PACK; ++k) gradient.v[k] = get(value.v[k]) > 0 ? gradient.v[k] : put(0);
        store<PACK>(dz + i * PACK, gradient);
    }
    for (Index i = packs * PACK + first_thread(); i < n; i += all_threads()) dz[i] = get(y[i]) > 0 ? dy[i] : put(0);
}

// out = a + b; out may be a.
extern "C" __global__ void add(const T* a, const T* b, T* out, Index n) {
    const Index packs = aligned(a) && aligned(b) && aligned(out) ? n / PACK : 0;
    for (Index i = first_thread(); i < packs; i += all_threads()) {
        Vector<PACK> sum = load<PACK>(a + i * PACK);
        const Vector<PACK> term = load<PACK>(b + i * PACK);
        for (int k = 0; k < PACK; ++k) sum.v[k] = put(get(sum.v[k]) + get(term.v[k]));
        store<PACK>(out + i * PACK, sum);
    }
    for (Index i = packs * PACK + first_thread(); i < n; i += all_threads()) out[i] = put(get(a[i]) + get(b[i]));
}

extern "C" __global__ void sigmoid_forward(const T* x, T* y, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) y[i] = put((A)1 / ((A)1 + exp(-get(x[i]))));
}

extern "C" __global__ void sigmoid_backward(const T* dy, const T* y, T* dx, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) {
        const A value = get(y[i]);
        dx[i] = put(get(dy[i]) * value * (1 - value));
    }
}

template <int V>
__device__ void bias_rows(T* y, const A* bias, Index rows, Index channels, Index relu) {
    EACH_ROW(row, rows) {
        EACH_CHANNEL(c, channels, V) {
            Vector<V> values = load<V>(y + row * channels + c);
            for (int k = 0; k < V; ++k) {
                A value = get(values.v[k]);
                if (bias) value += bias[c + k];
                values.v[k] = put(relu && value < 0 ? (A)0 : value);
            }
            store<V>(y + row * channels + c, values);
        }
    }
}

// y += bias per channel, then max(y, 0) if relu, in place; bias may be null.
extern "C" __global__ void bias_relu(T* y, const A* bias, Index rows, Index channels, Index relu) {
    if (channels % PACK == 0 && aligned(y)) bias_rows<PACK>(y, bias, rows, channels, relu);
    else bias_rows<1>(y, bias, rows, channels, relu);
}

template <int V>
__device__ void copy_rows(const T* from, T* to, Index rows, Index width, Index from_pitch, Index to_pitch) {
    EACH_ROW(row, rows) {
        EACH_CHANNEL(c, width, V) { store<V>(to + row * to_pitch + c, load<V>(from + row * from_pitch + c)); }
    }
}

// Copies rows of width elements; pitches are the distances between rows, in elements.
extern "C" __global__ void copy_columns(const T* from, T* to, Index rows, Index width, Index from_pitch,
                                        Index from_offset, Index to_pitch, Index to_offset) {
    from += from_offset;
    to += to_offset;
    if (width % PACK == 0 && from_pitch % PACK == 0 && to_pitch % PACK == 0 && aligned(from) && aligned(to))
        copy_rows<PACK>(from, to, rows, width, from_pitch, to_pitch);
    else copy_rows<1>(from, to, rows, width, from_pitch, to_pitch);
}
