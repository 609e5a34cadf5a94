// Products of low-rank matrices.

// into (rows, columns) = left (rows, rank) times the transpose of right (columns, rank); sums are not fused.
extern "C" __global__ void write_product(const T* left, const T* right, T* into, Index rows, Index columns, Index rank) {
    for (Index at = first_thread(); at < rows * columns; at += all_threads()) {
        const T* a = left + at / columns * rank;
        const T* b = right + at % columns * rank;
        T total = rounded_product(a[0], b[0]);
        for (Index one = 1; one < rank; ++one) total += rounded_product(a[one], b[one]);
        into[at] = total;
    }
}
