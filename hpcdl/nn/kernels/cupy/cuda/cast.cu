// Conversion between the precisions of parameters and of activations; also copies to aligned arrays.

extern "C" __global__ void narrow(const A* from, T* to, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) to[i] = put(from[i]);
}

extern "C" __global__ void widen(const T* from, A* to, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) to[i] = get(from[i]);
}
