// Sums over chunks of segments in the order of reproducible.py: lane i of a chunk adds its entries i, i + LANES, ...
#define LANES 64

// The segment of an entry; cuts (segments + 1,) rise.
__device__ inline Index segment_of(const Index* cuts, Index segments, Index entry) {
    Index low = 0, high = segments;
    while (high - low > 1) {
        const Index middle = (low + high) / 2;
        if (cuts[middle] <= entry) low = middle;
        else high = middle;
    }
    return low;
}

// The sum of the lanes of a chunk, which are overwritten.
__device__ inline double sum_of_lanes(double* lanes, Index entries) {
    if (entries < LANES) {
        double sum = 0;
        for (Index i = 0; i < entries; ++i) sum += lanes[i];
        return sum;
    }
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}
