// Convolution in f64 on tensor cores, as a product of weights and the elements under the windows (implicit GEMM): nothing of the image is
// copied. A block computes a tile of channels and pixels; its four warps compute a quarter each.

// For older architectures no kernels are compiled.
#if __CUDA_ARCH__ >= 800

constexpr unsigned CHANNELS = 64, PIXELS = 64, THREADS = 128;
// Input channels of a step, as many as a fragment has.
constexpr unsigned INNER = 16;
// Steps whose elements are in shared memory, or on the way there.
constexpr unsigned STAGES = 4;
// Elements of a row in shared memory: loads of a half warp reach all banks.
constexpr unsigned WEIGHT_PITCH = INNER + 4, IMAGE_PITCH = PIXELS + 4;

struct Stage {
    double weights[CHANNELS][WEIGHT_PITCH], images[INNER][IMAGE_PITCH];
};

// Copies an element to shared memory, or zero.
__device__ inline void copy_or_zero(double *to, const double *from, bool is_inside) {
    const unsigned address = __cvta_generic_to_shared(to), bytes = is_inside ? sizeof(double) : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

// d += a * b, of 16 x 16 and 16 x 8 elements.
__device__ inline void multiply_add(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
    for (unsigned k = 0; k < 4; k++)
#pragma unroll
        for (unsigned half = 0; half < 2; half++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
                : "d"(a[2 * k + half]), "d"(b[k]));
#endif
}

// `x` is (batch, groups, inner, h, w), `weight` (kh * kw, groups, out, inner), `y` (batch, groups, out, oh, ow).
extern "C" __global__ void __launch_bounds__(THREADS) opara_convolution_double_f64(
    size_t numel, int groups, int out, int inner, int h, int w, int oh, int ow, int kh, int kw, int stride_rows,
    int stride_columns, int dilation_rows, int dilation_columns, int top, int left, const double *x, const double *weight,
    double *y) {
    extern __shared__ double shared[];
    Stage *stages = reinterpret_cast<Stage *>(shared);
    const unsigned thread = threadIdx.x, group = blockIdx.y;
    const unsigned tiles = (out + CHANNELS - 1) / CHANNELS;
    // Tiles of the same pixels are neighbours: they read the same elements.
    const unsigned first_channel = blockIdx.x % tiles * CHANNELS, first_pixel = blockIdx.x / tiles * PIXELS;
    const unsigned plane = oh * ow, pixels = numel / ((size_t)groups * out);

    // A thread copies elements of one column of an image tile, those under one pixel's window.
    const unsigned column = thread % PIXELS, pixel = first_pixel + column;
    const unsigned batch = pixel / plane, row_of_pixel = pixel % plane / ow, column_of_pixel = pixel % plane % ow;
    const int r0 = row_of_pixel * stride_rows - top, c0 = column_of_pixel * stride_columns - left;
    const double *image = x + ((size_t)batch * groups + group) * inner * h * w;

    const unsigned chunks = (inner + INNER - 1) / INNER, steps = kh * kw * chunks;
    unsigned next_tap = 0, next_inner = 0;
    // Begins to copy the elements of the next step, if there is one.
    auto copy_next = [&](Stage &stage) {
        if (next_tap == (unsigned)(kh * kw)) {
            asm volatile("cp.async.commit_group;" ::: "memory");
            return;
        }
        const int r = r0 + (int)(next_tap / kw) * dilation_rows, c = c0 + (int)(next_tap % kw) * dilation_columns;
        const bool is_inside = pixel < pixels && (unsigned)r < (unsigned)h && (unsigned)c < (unsigned)w;
        const double *under = image + (size_t)next_inner * h * w + r * w + c;
#pragma unroll
        for (unsigned i = 0; i < INNER; i += THREADS / PIXELS) {
            const unsigned k = i + thread / PIXELS;
            const bool is = is_inside && next_inner + k < inner;
            copy_or_zero(&stage.images[k][column], is ? under + (size_t)k * h * w : x, is);
        }
        const unsigned k = thread % INNER;
        const double *of_tap = weight + ((size_t)next_tap * groups + group) * out * inner + next_inner + k;
#pragma unroll
        for (unsigned i = 0; i < CHANNELS; i += THREADS / INNER) {
            const unsigned m = i + thread / INNER, channel = first_channel + m;
            const bool is = channel < out && next_inner + k < inner;
            copy_or_zero(&stage.weights[m][k], is ? of_tap + (size_t)channel * inner : weight, is);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        next_inner += INNER;
        if (next_inner >= inner) next_inner = 0, next_tap++;
    };

    const unsigned warp = thread / 32, lane = thread % 32;
    const unsigned own_channel = warp % 2 * (CHANNELS / 2), own_pixel = warp / 2 * (PIXELS / 2);
    // The lane's rows and columns of fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").
    const unsigned outer_lane = lane / 4, inner_lane = lane % 4;
    // Fragments of 16 channels, and of 8 pixels.
    constexpr unsigned M = CHANNELS / 32, N = PIXELS / 16;
    double sums[M][N][4] = {};
#pragma unroll
    for (unsigned stage = 0; stage + 1 < STAGES; stage++) copy_next(stages[stage]);
    for (unsigned step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        // All have what this step reads, and have read what the step before did.
        __syncthreads();
        copy_next(stages[(step + STAGES - 1) % STAGES]);
        const Stage &stage = stages[step % STAGES];
        double b[N][4];
#pragma unroll
        for (unsigned n = 0; n < N; n++)
#pragma unroll
            for (unsigned k = 0; k < 4; k++) b[n][k] = stage.images[4 * k + inner_lane][own_pixel + n * 8 + outer_lane];
#pragma unroll
        for (unsigned m = 0; m < M; m++) {
            double a[8];
#pragma unroll
            for (unsigned i = 0; i < 8; i++) {
                const unsigned row = m * 16 + i % 2 * 8 + outer_lane;
                a[i] = stage.weights[own_channel + row][i / 2 * 4 + inner_lane];
            }
#pragma unroll
            for (unsigned n = 0; n < N; n++) multiply_add(sums[m][n], a, b[n]);
        }
    }
#pragma unroll
    for (unsigned n = 0; n < N; n++)
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const unsigned at = first_pixel + own_pixel + n * 8 + inner_lane * 2 + i;
            if (at >= pixels) continue;
            double *to = y + ((size_t)(at / plane) * groups + group) * out * plane + at % plane;
#pragma unroll
            for (unsigned m = 0; m < 2 * M; m++) {
                const unsigned channel = first_channel + own_channel + m * 8 + outer_lane;
                if (channel < out) to[(size_t)channel * plane] = sums[m / 2][n][m % 2 * 2 + i];
            }
        }
}

#endif
