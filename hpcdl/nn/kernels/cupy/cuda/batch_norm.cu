// Batch normalisation over rows, per channel. Rows are summed in groups, groups are combined in a fixed order.

// Mean and sum of squared deviations of each group of rows; group g has rows g, g + groups, ... Values are summed
// relative to the group's first value, which limits cancellation where the mean is large.
extern "C" __global__ void moments_of_groups(const T* x, A* means, A* squares, Index rows, Index C, Index groups) {
    EACH_ROW(group, groups) {
        EACH_CHANNEL(c, C, 1) {
            const A origin = get(x[group * C + c]);
            A sum = 0, square = 0;
#pragma unroll 4
            for (Index row = group; row < rows; row += groups) {
                const A value = get(x[row * C + c]) - origin;
                sum += value;
                square += value * value;
            }
            const A count = (A)((rows - group + groups - 1) / groups);
            means[group * C + c] = origin + sum / count;
            squares[group * C + c] = square - sum * sum / count;
        }
    }
}

// Combines the groups (Chan et al. 1979) to mean and 1 / sqrt(variance + eps), and updates the running statistics:
// running = momentum * running + (1 - momentum) * batch, with the unbiased variance.
extern "C" __global__ void moments(const A* means, const A* squares, A* mean, A* inverse, A* running_mean,
                                   A* running_variance, Index rows, Index C, Index groups, double eps,
                                   double momentum) {
    for (Index c = first_thread(); c < C; c += all_threads()) {
        A joined = 0, square = 0, before = 0;
        for (Index group = 0; group < groups; ++group) {
            const A count = (A)((rows - group + groups - 1) / groups), total = before + count;
            const A delta = means[group * C + c] - joined;
            joined += delta * (count / total);
            square += squares[group * C + c] + delta * delta * (before * (count / total));
            before = total;
        }
        mean[c] = joined;
        inverse[c] = (A)1 / sqrt(square / before + (A)eps);
        running_mean[c] = (A)momentum * running_mean[c] + (A)(1 - momentum) * joined;
        running_variance[c] = (A)momentum * running_variance[c] +
                              (A)(1 - momentum) * square / (before > 1 ? before - 1 : (A)1);
    }
}

extern "C" __global__ void inverse_deviation(const A* variance, A* inverse, Index C, double eps) {
    for (Index c = first_thread(); c < C; c += all_threads()) inverse[c] = (A)1 / sqrt(variance[c] + (A)eps);
}

template <int V>
__device__ void normalise_rows(const T* x, const T* shortcut, const A* mean, const A* inverse, const A* gamma,
                               const A* beta, T* y, Index rows, Index C, Index relu) {
    EACH_ROW(row, rows) {
        EACH_CHANNEL(c, C, V) {
            Vector<V> values = load<V>(x + row * C + c), added = values;
            if (shortcut) added = load<V>(shortcut + row * C + c);
            for (int k = 0; k < V; ++k) {
                const Index i = c + k;
                A value = (get(values.v[k]) - mean[i]) * (gamma[i] * inverse[i]) + beta[i];
                if (shortcut) value += get(added.v[k]);
                values.v[k] = put(relu && value < 0 ? (A)0 : value);
            }
            store<V>(y + row * C + c, values);
        }
    }
}

// y = gamma (x - mean) inverse + beta (+ shortcut, unless null), then max(y, 0) if relu.
extern "C" __global__ void normalise(const T* x, const T* shortcut, const A* mean, const A* inverse, const A* gamma,
                                     const A* beta, T* y, Index rows, Index C, Index relu) {
    if (C % PACK == 0 && aligned(x) && aligned(y) && aligned(shortcut))
        normalise_rows<PACK>(x, shortcut, mean, inverse, gamma, beta, y, rows, C, relu);
    else normalise_rows<1>(x, shortcut, mean, inverse, gamma, beta, y, rows, C, relu);
}

// Sums per group of rows: of dz, and of dz times the normalised input.
extern "C" __global__ void gradients_of_groups(const T* dz, const T* x, const A* mean, const A* inverse, A* sums,
                                               A* products, Index rows, Index C, Index groups) {
    EACH_ROW(group, groups) {
        EACH_CHANNEL(c, C, 1) {
            A sum = 0, product = 0;
#pragma unroll 4
            for (Index row = group; row < rows; row += groups) {
                const A gradient = get(dz[row * C + c]);
                sum += gradient;
                product += gradient * (get(x[row * C + c]) - mean[c]);
            }
            sums[group * C + c] = sum;
            products[group * C + c] = product * inverse[c];
        }
    }
}

template <int V>
__device__ void gradient_rows(const T* dz, const T* x, const A* mean, const A* inverse, const A* gamma,
                              const A* dgamma, const A* dbeta, T* dx, Index rows, Index C) {
    const A share = (A)1 / (A)rows;
    EACH_ROW(row, rows) {
        EACH_CHANNEL(c, C, V) {
            Vector<V> gradient = load<V>(dz + row * C + c);
            const Vector<V> values = load<V>(x + row * C + c);
            for (int k = 0; k < V; ++k) {
                const Index i = c + k;
                const A normalised = (get(values.v[k]) - mean[i]) * inverse[i];
                gradient.v[k] = put(gamma[i] * inverse[i] *
                                    (get(gradient.v[k]) - dbeta[i] * share - normalised * dgamma[i] * share));
            }
            store<V>(dx + row * C + c, gradient);
        }
    }
}

// dx = gamma inverse (dz - mean of dz - normalised * mean of dz normalised).
extern "C" __global__ void input_gradient(const T* dz, const T* x, const A* mean, const A* inverse, const A* gamma,
                                          const A* dgamma, const A* dbeta, T* dx, Index rows, Index C) {
    if (C % PACK == 0 && aligned(dz) && aligned(x) && aligned(dx))
        gradient_rows<PACK>(dz, x, mean, inverse, gamma, dgamma, dbeta, dx, rows, C);
    else gradient_rows<1>(dz, x, mean, inverse, gamma, dgamma, dbeta, dx, rows, C);
}
