// Softmax and cross-entropy: 32 threads (lanes) scan an image's logits, one thread combines them, one sums all images.

const int LANES = 32;

// Per image and lane: largest logit, sum of exp(logit - largest), and the index of the first largest.
extern "C" __global__ void scan_logits(const T* logits, A* largest, A* total, int* place, Index images,
                                       Index classes) {
    for (Index i = first_thread(); i < images * LANES; i += all_threads()) {
        const T* row = logits + i / LANES * classes;
        A top = 0, sum = 0;
        int where = -1;
        for (Index c = i % LANES; c < classes; c += LANES) {
            const A value = get(row[c]);
            if (where < 0 || value > top || (value != value && top == top)) {
                sum = where < 0 ? (A)1 : sum * exp(top - value) + 1;
                top = value;
                where = (int)c;
            } else {
                sum += exp(value - top);
            }
        }
        largest[i] = top;
        total[i] = sum;
        place[i] = where;
    }
}

// Per image: largest logit and sum over all classes, the loss, and right: 1 if the label's logit is the first largest,
// 0 if not, -1 if the label is out of range.
extern "C" __global__ void join_lanes(const T* logits, const long long* labels, const A* largest, const A* total,
                                      const int* place, A* tops, A* sums, double* losses, int* right, Index images,
                                      Index classes) {
    for (Index n = first_thread(); n < images; n += all_threads()) {
        A top = largest[n * LANES], sum = 0;
        int where = place[n * LANES];
        for (int lane = 1; lane < LANES && lane < classes; ++lane) {
            const A value = largest[n * LANES + lane];
            const int there = place[n * LANES + lane];
            if (value > top || (value != value && top == top) || (value == top && there < where)) {
                top = value;
                where = there;
            }
        }
        for (int lane = 0; lane < LANES && lane < classes; ++lane)
            sum += total[n * LANES + lane] * exp(largest[n * LANES + lane] - top);
        tops[n] = top;
        sums[n] = sum;
        const long long label = labels[n];
        const bool known = label >= 0 && label < classes;
        losses[n] = known ? (double)log(sum) - (double)(get(logits[n * classes + label]) - top) : 0;
        right[n] = known ? where == label : -1;
    }
}

// result: the sum of the losses, the number of correct images, the number of labels out of range.
extern "C" __global__ void add_losses(const double* losses, const int* right, double* result, Index images) {
    if (first_thread() != 0) return;
    double loss = 0, correct = 0, unknown = 0;
    for (Index n = 0; n < images; ++n) {
        loss += losses[n];
        correct += right[n] > 0;
        unknown += right[n] < 0;
    }
    result[0] = loss;
    result[1] = correct;
    result[2] = unknown;
}

// scale * (softmax - 1 at the label).
extern "C" __global__ void softmax_gradient(const T* logits, const long long* labels, const A* tops, const A* sums,
                                            T* gradient, Index images, Index classes, double scale) {
    for (Index i = first_thread(); i < images * classes; i += all_threads()) {
        const Index n = i / classes;
        const A probability = exp(get(logits[i]) - tops[n]) / sums[n];
        gradient[i] = put((A)scale * (i % classes == labels[n] ? probability - 1 : probability));
    }
}
