// Sums per channel over rows: one thread per channel sums a group of rows; a second kernel sums the groups.

template <int V>
__device__ void sum_groups(const T* x, A* sums, Index rows, Index channels, Index groups) {
    EACH_ROW(group, groups) {
        EACH_CHANNEL(c, channels, V) {
            A sum[V];
            for (int k = 0; k < V; ++k) sum[k] = 0;
#pragma unroll 4
            for (Index row = group; row < rows; row += groups) {
                const Vector<V> values = load<V>(x + row * channels + c);
                for (int k = 0; k < V; ++k) sum[k] += get(values.v[k]);
            }
            for (int k = 0; k < V; ++k) sums[group * channels + c + k] = sum[k];
        }
    }
}

// sums (groups, channels) of x (rows, channels): group g has rows g, g + groups, ...
extern "C" __global__ void sum_activations(const T* x, A* sums, Index rows, Index channels, Index groups) {
    if (channels % PACK == 0 && aligned(x)) sum_groups<PACK>(x, sums, rows, channels, groups);
    else sum_groups<1>(x, sums, rows, channels, groups);
}

// sums (groups, channels) of partial sums x (rows, channels), grouped as in sum_activations.
extern "C" __global__ void sum_partial(const A* x, A* sums, Index rows, Index channels, Index groups) {
    EACH_ROW(group, groups) {
        EACH_CHANNEL(c, channels, 1) {
            A sum = 0;
            for (Index row = group; row < rows; row += groups) sum += x[row * channels + c];
            sums[group * channels + c] = sum;
        }
    }
}
