// Conversion of float32 to float16, which NUMBER must choose, and back; to nearest, even on ties.

// Larger numbers than 65504 become 65504. Sets wrong if a number is not finite.
extern "C" __global__ void narrow(const A* numbers, T* sent, A* residual, int* wrong, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) {
        const A number = numbers[i];
        const T rounded = put(number > 65504 ? 65504 : number < -65504 ? -65504 : number);
        sent[i] = rounded;
        if (number - number != 0) *wrong = 1;
        if (residual) residual[i] = number - get(rounded);
    }
}

// Sets wrong if a number is not finite.
extern "C" __global__ void widen(const T* sent, A* numbers, int* wrong, Index n) {
    for (Index i = first_thread(); i < n; i += all_threads()) {
        const A value = get(sent[i]);
        numbers[i] = value;
        if (value - value != 0) *wrong = 1;
    }
}
