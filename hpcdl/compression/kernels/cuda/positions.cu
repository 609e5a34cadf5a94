// Entries at positions, all different.

extern "C" __global__ void take(const T* vector, const int* indices, T* values, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) values[i] = vector[indices[i]];
}

extern "C" __global__ void put(T* vector, const int* indices, const T* values, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) vector[indices[i]] = values[i];
}

extern "C" __global__ void add(T* vector, const int* indices, const T* values, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) vector[indices[i]] += values[i];
}
