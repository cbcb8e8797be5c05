// The kernels behind batch_norm_cuda_kernel.h.
//
// A block of 256 threads lies over a tile of channels and a block of rows: 8 threads of 8 channels
// side by side (whole cache lines of 16-bit values), or 32 of one channel where their number is no
// multiple of 8. A thread keeps what belongs to its channels in registers and goes down the rows.
#ifndef MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CUDA_KERNEL_INL_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/batch_norm/batch_norm_cuda_kernel.h"

namespace milepost::kernels::cuda {

template <int N>
struct ImageTile {
  static constexpr int kThreads = 256;
  static constexpr int kColumns = N == 1 ? kWarp : 8;  // threads side by side
  static constexpr int kRows = kThreads / kColumns;
  static constexpr int kWidth = kColumns * N;
  int64_t rows, channels, block_rows;

  int64_t tiles() const { return CeilDiv(channels, kWidth); }
  int64_t row_blocks() const { return CeilDiv(rows, block_rows); }
  Grid grid() const { return {.x = tiles() * row_blocks()}; }

  // A thread's part: N channels from `channel` on (none where it is not below `channels`) of every
  // kRows-th row of its block: the values from `begin` on, `step` apart, below `end`.
  struct Part {
    int64_t row_block, channel, begin, end, step;
  };
  template <typename Context>
  MP_DEVICE Part PartOf(Context& c) const {
    const int64_t across = CeilDiv(channels, kWidth);
    const int64_t row_block = c.block() / across, first = row_block * block_rows;
    const int64_t last = first + block_rows < rows ? first + block_rows : rows;
    const int64_t channel = c.block() % across * kWidth + c.thread() % kColumns * N;
    const int64_t begin = (first + c.thread() / kColumns) * channels + channel;
    return {row_block, channel, begin, channel < channels ? last * channels : 0, kRows * channels};
  }
};

// For kernels that sum over rows.
template <int N>
ImageTile<N> TileOfSums(int64_t rows, int64_t channels) {
  static_assert(ImageTile<N>::kWidth == BatchNormTileWidth(N));
  return {rows, channels, BatchNormBlockRows(rows, channels)};
}
// For the others.
template <int N>
ImageTile<N> TileOfValues(int64_t rows, int64_t channels) {
  return {rows, channels, ImageTile<N>::kRows * 8};
}

// A thread's two sums of each of its channels: fp32 over kRun rows, then fp64.
template <int N>
struct RunningSums {
  static constexpr int kRun = 16;
  double first[N] = {};
  double second[N] = {};
  float run_first[N] = {};
  float run_second[N] = {};

  MP_DEVICE void EndRun() {
    MP_UNROLL
    for (int i = 0; i < N; ++i) {
      first[i] += run_first[i];
      second[i] += run_second[i];
      run_first[i] = 0;
      run_second[i] = 0;
    }
  }
};

// partials[row block, 2, channels] = the block's sums; all of its threads take part.
template <int N, typename Context>
MP_DEVICE void StoreSums(Context& c, const ImageTile<N>& tile,
                         const typename ImageTile<N>::Part& part, RunningSums<N>& sums,
                         double* partials) {
  using Tile = ImageTile<N>;
  constexpr int kWarps = Tile::kThreads / kWarp;
  auto shared = c.template Shared<double, 2 * kWarps * Tile::kWidth, 0>();
  MP_UNROLL
  for (int i = 0; i < N; ++i) {
    MP_UNROLL
    for (int mask = Tile::kColumns; mask < kWarp; mask *= 2) {
      sums.first[i] += c.ShuffleXor(sums.first[i], mask);
      sums.second[i] += c.ShuffleXor(sums.second[i], mask);
    }
    if (c.lane() < Tile::kColumns) {
      const int at = c.warp() * Tile::kWidth + c.lane() * N + i;
      shared.Set(at, sums.first[i]);
      shared.Set(kWarps * Tile::kWidth + at, sums.second[i]);
    }
  }
  c.Sync();
  if (c.thread() >= 2 * Tile::kWidth) return;
  const int which = c.thread() / Tile::kWidth, column = c.thread() % Tile::kWidth;
  const int64_t channel = part.channel - c.thread() % Tile::kColumns * N + column;
  if (channel >= tile.channels) return;
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    sum += shared.Get((which * kWarps + w) * Tile::kWidth + column);
  }
  c.Store(partials + (2 * part.row_block + which) * tile.channels + channel, sum);
}

// Of x - shift, where shift is the first row: squares of small numbers lose less.
template <typename T, int N>
struct BatchNormSumsKernel {
  static constexpr int kThreads = ImageTile<N>::kThreads;
  ImageTile<N> tile;
  const T* x;
  double* partials;

  Grid grid() const { return tile.grid(); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    constexpr int kAtOnce = 4;
    const auto part = tile.PartOf(c);
    RunningSums<N> sums;
    Floats<N> shift = {};
    if (part.channel < tile.channels) shift = Read<N>(c, x + part.channel);
    int in_run = 0;
    for (int64_t from = part.begin; from < part.end; from += kAtOnce * part.step) {
      Floats<N> values[kAtOnce];
      MP_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t at = from + k * part.step;
        values[k] = at < part.end ? Read<N>(c, x + at) : shift;
      }
      MP_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        MP_UNROLL
        for (int i = 0; i < N; ++i) {
          const float v = values[k].v[i] - shift.v[i];
          sums.run_first[i] += v;
          sums.run_second[i] = fmaf(v, v, sums.run_second[i]);
        }
      }
      in_run += kAtOnce;
      if (in_run == RunningSums<N>::kRun) {
        sums.EndRun();
        in_run = 0;
      }
    }
    sums.EndRun();
    StoreSums(c, tile, part, sums, partials);
  }
};

// finish(c, channel, both sums over all row blocks); a block has 32 channels, each of its warps
// every 32nd row block.
template <typename Finish>
struct BatchNormTotalKernel {
  static constexpr int kThreads = 1024;
  const double* partials;
  int64_t count, channels;
  Finish finish;

  Grid grid() const { return {.x = CeilDiv(channels, kWarp)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    constexpr int kWarps = kThreads / kWarp;
    const int64_t channel = c.block() * kWarp + c.lane();
    double first = 0, second = 0;
    if (channel < channels) {
      for (int64_t p = c.warp(); p < count; p += kWarps) {
        first += c.Load(partials + 2 * p * channels + channel);
        second += c.Load(partials + (2 * p + 1) * channels + channel);
      }
    }
    auto firsts = c.template Shared<double, kThreads, 0>();
    auto seconds = c.template Shared<double, kThreads, 1>();
    firsts.Set(c.thread(), first);
    seconds.Set(c.thread(), second);
    c.Sync();
    if (c.warp() != 0 || channel >= channels) return;
    for (int w = 1; w < kWarps; ++w) {
      first += firsts.Get(w * kWarp + c.lane());
      second += seconds.Get(w * kWarp + c.lane());
    }
    finish(c, channel, first, second);
  }
};

// The shift is taken back.
template <typename T>
struct FinishForwardSums {
  const T* x;
  int64_t rows, channels;
  double* sums;

  template <typename Context>
  MP_DEVICE void operator()(Context& c, int64_t channel, double sum, double squares) const {
    const auto count = static_cast<double>(rows);
    const double shift = Widen(c.Load(x + channel));
    const double mean = shift + sum / count;
    c.Store(sums + channel, count * mean);
    c.Store(sums + channels + channel, squares - sum * sum / count + count * mean * mean);
  }
};

struct FinishBackwardSums {
  int64_t channels;
  bool accumulate;
  double* sums;
  float* dgamma;
  float* dbeta;

  template <typename Context>
  MP_DEVICE void operator()(Context& c, int64_t channel, double sum, double products) const {
    c.Store(sums + channel, sum);
    c.Store(sums + channels + channel, products);
    const float beta_before = accumulate ? c.Load(dbeta + channel) : 0.0f;
    const float gamma_before = accumulate ? c.Load(dgamma + channel) : 0.0f;
    c.Store(dbeta + channel, static_cast<float>(sum) + beta_before);
    c.Store(dgamma + channel, static_cast<float>(products) + gamma_before);
  }
};

struct BatchNormStatisticsKernel {
  static constexpr int kThreads = 64;
  BatchNormStatisticsArgs a;

  Grid grid() const { return {.x = CeilDiv(a.channels, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t channel = c.block() * kThreads + c.thread();
    if (channel == 0) c.Store(a.batches, c.Load(a.batches) + 1);
    if (channel >= a.channels) return;
    const auto n = static_cast<double>(a.count);
    const double sum = c.Load(a.sums + channel), squares = c.Load(a.sums + a.channels + channel);
    const double mean = sum / n, variance = squares / n - mean * mean;
    c.Store(a.mean + channel, static_cast<float>(mean));
    // A variance of 0 may come out below it; one that is not finite stays so.
    c.Store(a.rstd + channel,
            static_cast<float>(1 / sqrt((variance < 0 ? 0 : variance) + a.epsilon)));
    if (!(fabs(mean) < INFINITY) || !(fabs(squares) < INFINITY)) return;
    const double unbiased = fmax(squares - n * mean * mean, 0.0) / fmax(n - 1, 1.0);
    Move(c, a.running_mean + channel, mean);
    Move(c, a.running_variance + channel, unbiased);
  }

 private:
  template <typename Context>
  MP_DEVICE void Move(Context& c, float* running, double to) const {
    const float from = c.Load(running);
    c.Store(running, from + static_cast<float>(a.momentum * (to - static_cast<double>(from))));
  }
};

struct BatchNormRunningKernel {
  static constexpr int kThreads = 64;
  const float* running_mean;
  const float* running_variance;
  int64_t channels;
  double epsilon;
  float* mean;
  float* rstd;

  Grid grid() const { return {.x = CeilDiv(channels, kThreads)}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t channel = c.block() * kThreads + c.thread();
    if (channel >= channels) return;
    c.Store(mean + channel, c.Load(running_mean + channel));
    const double variance = c.Load(running_variance + channel);
    c.Store(rstd + channel, static_cast<float>(1 / sqrt(variance + epsilon)));
  }
};

// y = x scale + shift.
template <int N>
struct ScaleAndShift {
  float scale[N], shift[N];
};
template <int N, typename Context, typename T>
MP_DEVICE ScaleAndShift<N> ScaleAndShiftAt(Context& c, const float* mean, const float* rstd,
                                           const T* gamma, const T* beta) {
  const auto m = Read<N>(c, mean), r = Read<N>(c, rstd);
  const auto g = Read<N>(c, gamma), b = Read<N>(c, beta);
  ScaleAndShift<N> out;
  MP_UNROLL
  for (int i = 0; i < N; ++i) {
    out.scale[i] = r.v[i] * g.v[i];
    out.shift[i] = b.v[i] - m.v[i] * out.scale[i];
  }
  return out;
}

template <typename T, int N>
struct BatchNormForwardKernel {
  static constexpr int kThreads = ImageTile<N>::kThreads;
  ImageTile<N> tile;
  BatchNormForwardArgs<T> a;

  Grid grid() const { return tile.grid(); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const auto part = tile.PartOf(c);
    const int64_t from = part.channel;
    if (from >= tile.channels) return;
    const auto k =
        ScaleAndShiftAt<N>(c, a.mean + from, a.rstd + from, a.gamma + from, a.beta + from);
    for (int64_t at = part.begin; at < part.end; at += part.step) {
      auto y = Read<N>(c, a.x + at);
      MP_UNROLL
      for (int i = 0; i < N; ++i) y.v[i] = fmaf(y.v[i], k.scale[i], k.shift[i]);
      if (a.residual != nullptr) {
        const auto residual = Read<N>(c, a.residual + at);
        MP_UNROLL
        for (int i = 0; i < N; ++i) y.v[i] += residual.v[i];
      }
      if (a.relu) {
        MP_UNROLL
        for (int i = 0; i < N; ++i) y.v[i] = y.v[i] < 0.0f ? 0.0f : y.v[i];  // a NaN stays one
      }
      Write(c, a.y + at, y.v);
    }
  }
};

// What tells where the ReLU let through.
enum class ReluBy : uint8_t { kNone, kOutput, kInput };

// The gradient of what went into the ReLU, of N values at `at`; x: theirs.
template <ReluBy kRelu, int N, typename Context, typename T>
MP_DEVICE Floats<N> GradientAt(Context& c, const BatchNormBackwardArgs<T>& a,
                               const ScaleAndShift<N>& k, int64_t at, const Floats<N>& x) {
  auto g = Read<N>(c, a.dy + at);
  if (a.dy2 != nullptr) {
    const auto more = Read<N>(c, a.dy2 + at);
    MP_UNROLL
    for (int i = 0; i < N; ++i) g.v[i] += more.v[i];
  }
  if constexpr (kRelu == ReluBy::kOutput) {
    const auto y = Read<N>(c, a.y + at);
    MP_UNROLL
    for (int i = 0; i < N; ++i) g.v[i] = y.v[i] > 0.0f ? g.v[i] : 0.0f;
  } else if constexpr (kRelu == ReluBy::kInput) {
    MP_UNROLL
    for (int i = 0; i < N; ++i) {
      g.v[i] = fmaf(x.v[i], k.scale[i], k.shift[i]) > 0.0f ? g.v[i] : 0.0f;
    }
  }
  return g;
}

template <typename T, int N, ReluBy kRelu>
struct BatchNormBackwardSumsKernel {
  static constexpr int kThreads = ImageTile<N>::kThreads;
  ImageTile<N> tile;
  BatchNormBackwardArgs<T> a;
  T* out;  // nullable: g
  double* partials;

  Grid grid() const { return tile.grid(); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const auto part = tile.PartOf(c);
    const int64_t from = part.channel;
    Floats<N> mean = {}, rstd = {};
    ScaleAndShift<N> k = {};
    if (from < tile.channels) {
      mean = Read<N>(c, a.mean + from);
      rstd = Read<N>(c, a.rstd + from);
      if constexpr (kRelu == ReluBy::kInput) {
        k = ScaleAndShiftAt<N>(c, a.mean + from, a.rstd + from, a.gamma + from, a.beta + from);
      }
    }
    RunningSums<N> sums;
    int in_run = 0;
    for (int64_t at = part.begin; at < part.end; at += part.step) {
      const auto x = Read<N>(c, a.x + at);
      const auto g = GradientAt<kRelu>(c, a, k, at, x);
      if (out != nullptr) Write(c, out + at, g.v);
      MP_UNROLL
      for (int i = 0; i < N; ++i) {
        const float xhat = (x.v[i] - mean.v[i]) * rstd.v[i];
        sums.run_first[i] += g.v[i];
        sums.run_second[i] = fmaf(g.v[i], xhat, sums.run_second[i]);
      }
      if (++in_run == RunningSums<N>::kRun) {
        sums.EndRun();
        in_run = 0;
      }
    }
    sums.EndRun();
    StoreSums(c, tile, part, sums, partials);
  }
};

// dx = g a + x b + c, whose factors the block makes of its channels first.
template <typename T, int N, ReluBy kRelu>
struct BatchNormBackwardKernel {
  static constexpr int kThreads = ImageTile<N>::kThreads;
  ImageTile<N> tile;
  BatchNormBackwardArgs<T> a;
  const double* sums;
  int64_t count;
  T* dx;

  Grid grid() const { return tile.grid(); }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    using Tile = ImageTile<N>;
    const auto part = tile.PartOf(c);
    auto factors = c.template Shared<float, 3 * Tile::kWidth, 0>();
    if (c.thread() < Tile::kWidth) {
      const int64_t channel = part.channel - c.thread() % Tile::kColumns * N + c.thread();
      if (channel < tile.channels) SetFactors(c, factors, channel);
    }
    c.Sync();
    const int64_t from = part.channel;
    if (from >= tile.channels) return;
    ScaleAndShift<N> k = {};
    if constexpr (kRelu == ReluBy::kInput) {
      k = ScaleAndShiftAt<N>(c, a.mean + from, a.rstd + from, a.gamma + from, a.beta + from);
    }
    float f[3][N];
    MP_UNROLL
    for (int i = 0; i < 3 * N; ++i) {
      f[i / N][i % N] = factors.Get(i / N * Tile::kWidth + c.thread() % Tile::kColumns * N + i % N);
    }
    for (int64_t at = part.begin; at < part.end; at += part.step) {
      const auto x = Read<N>(c, a.x + at);
      auto g = GradientAt<kRelu>(c, a, k, at, x);
      MP_UNROLL
      for (int i = 0; i < N; ++i) g.v[i] = fmaf(g.v[i], f[0][i], fmaf(x.v[i], f[1][i], f[2][i]));
      Write(c, dx + at, g.v);
    }
  }

 private:
  template <typename Context, typename Array>
  MP_DEVICE void SetFactors(Context& c, const Array& factors, int64_t channel) const {
    const double rstd = c.Load(a.rstd + channel), mean = c.Load(a.mean + channel);
    const auto n = static_cast<double>(count);
    const double of_g = rstd * static_cast<double>(Widen(c.Load(a.gamma + channel)));
    const double of_x = -of_g * rstd * c.Load(sums + tile.channels + channel) / n;
    const double rest = -of_g * c.Load(sums + channel) / n - of_x * mean;
    factors.Set(c.thread(), static_cast<float>(of_g));
    factors.Set(ImageTile<N>::kWidth + c.thread(), static_cast<float>(of_x));
    factors.Set(2 * ImageTile<N>::kWidth + c.thread(), static_cast<float>(rest));
  }
};

// Which kernel a size takes: shared by the launches and by the tests. with(Width<N>()).
template <int N>
struct Width {
  static constexpr int value = N;
};
template <typename With>
absl::Status ByWidth(int64_t channels, const With& with) {
  return channels % 8 == 0 ? with(Width<8>()) : with(Width<1>());
}
template <ReluBy kRelu>
struct Relu {
  static constexpr ReluBy value = kRelu;
};
template <typename T, typename With>
absl::Status ByRelu(const BatchNormBackwardArgs<T>& a, const With& with) {
  if (!a.relu) return with(Relu<ReluBy::kNone>());
  return a.y != nullptr ? with(Relu<ReluBy::kOutput>()) : with(Relu<ReluBy::kInput>());
}

// run(kernel) launches it.
template <typename T, typename Run>
absl::Status RunBatchNormSums(const T* x, int64_t rows, int64_t channels, double* sums,
                              void* workspace, const Run& run) {
  auto* partials = static_cast<double*>(workspace);
  return ByWidth(channels, [&](auto width) {
    const auto tile = TileOfSums<decltype(width)::value>(rows, channels);
    const BatchNormSumsKernel<T, decltype(width)::value> kernel = {tile, x, partials};
    MP_RETURN_IF_ERROR(run(kernel));
    return run(BatchNormTotalKernel<FinishForwardSums<T>>{
        partials, tile.row_blocks(), channels, {x, rows, channels, sums}});
  });
}

template <typename T, typename Run>
absl::Status RunBatchNormForward(const BatchNormForwardArgs<T>& a, int64_t rows, int64_t channels,
                                 const Run& run) {
  return ByWidth(channels, [&](auto width) {
    constexpr int N = decltype(width)::value;
    return run(BatchNormForwardKernel<T, N>{TileOfValues<N>(rows, channels), a});
  });
}

template <typename T, typename Run>
absl::Status RunBatchNormBackwardSums(const BatchNormBackwardArgs<T>& a, int64_t rows, T* g,
                                      const FinishBackwardSums& finish, void* workspace,
                                      const Run& run) {
  auto* partials = static_cast<double*>(workspace);
  return ByWidth(finish.channels, [&](auto width) {
    constexpr int N = decltype(width)::value;
    const auto tile = TileOfSums<N>(rows, finish.channels);
    MP_RETURN_IF_ERROR(ByRelu(a, [&](auto relu) {
      return run(BatchNormBackwardSumsKernel<T, N, decltype(relu)::value>{tile, a, g, partials});
    }));
    return run(BatchNormTotalKernel<FinishBackwardSums>{partials, tile.row_blocks(),
                                                        finish.channels, finish});
  });
}

template <typename T, typename Run>
absl::Status RunBatchNormBackward(const BatchNormBackwardArgs<T>& a, const double* sums,
                                  int64_t count, int64_t rows, int64_t channels, T* dx,
                                  const Run& run) {
  return ByWidth(channels, [&](auto width) {
    constexpr int N = decltype(width)::value;
    return ByRelu(a, [&](auto relu) {
      return run(BatchNormBackwardKernel<T, N, decltype(relu)::value>{
          TileOfValues<N>(rows, channels), a, sums, count, dx});
    });
  });
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_CUDA_KERNEL_INL_H_
