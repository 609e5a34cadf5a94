// u = momentum u + scale g, v = v + u, and v in place of g; products are not fused with sums.
extern "C" __global__ void correct(T* gradient, T* velocity, T* accumulated, Index n, double momentum, double scale) {
    for (Index i = first_thread(); i < n; i += all_threads()) {
        velocity[i] = rounded_product((T)momentum, velocity[i]) + rounded_product((T)scale, gradient[i]);
        accumulated[i] += velocity[i];
        gradient[i] = accumulated[i];
    }
}
