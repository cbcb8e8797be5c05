// The CPU kernels at the shapes of GPT-2 124M (micro-batch 2 x 512 tokens), each beside its floor
// measured in the same run: a large oneDNN product for what computes, a copy for what moves memory.
//
//   OMP_NUM_THREADS=2 build/release/bench/kernels_cpu --benchmark_repetitions=5
//       --benchmark_report_aggregates_only=true
//
// Counters: GFLOPs or GBs per second, and `floor` = how much of the floor's rate that is (1 = at
// it).
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/sum_squares.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/ops/classifier/classifier_cpu_kernel.h"
#include "engine/ops/embedding/embedding_cpu_kernel.h"
#include "engine/ops/norm/layernorm_cpu_kernel.h"
#include "engine/optim/adamw/adamw_cpu_kernel.h"

namespace milepost::kernels {
namespace {

constexpr int64_t kBatch = 2, kSequence = 512, kTokens = kBatch * kSequence;
constexpr int64_t kWidth = 768, kVocabulary = 50257;

// Memory that has been touched, with small values in it: zeros would flatter, NaNs slow down.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : data_(std::aligned_alloc(4096, (bytes + 8191) / 4096 * 4096)) {
    MP_CHECK(data_ != nullptr) << bytes << " bytes";
    uint16_t* values = static_cast<uint16_t*>(data_);
    for (size_t i = 0; i < bytes / 2; ++i)
      values[i] = static_cast<uint16_t>(0x3c00 + i * 7919 % 200);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  void* data() { return data_; }

 private:
  void* data_;
};

// Wall time; with one thread its CPU time, which other processes disturb less.
double Now() {
  timespec time;
  clock_gettime(MaxThreads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
void UseTime(benchmark::internal::Benchmark* benchmark) {
  if (MaxThreads() > 1) benchmark->UseRealTime();
}

double Seconds(const std::function<void()>& run) {
  const double start = Now();
  run();
  return Now() - start;
}
double BestSeconds(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < 9; ++i) best = std::min(best, Seconds(run));
  return best;
}

double MeasureProduct(DType type) {
  constexpr int64_t kN = 2048;
  MatmulCache cache;
  const MatmulSpec spec{.m = kN, .n = kN, .k = kN, .a = type, .b = type, .c = type};
  const auto bytes = cache.WorkspaceBytes(spec);
  MP_CHECK(bytes.ok()) << bytes.status();
  Buffer a(kN * kN * 4), b(kN * kN * 4), c(kN * kN * 4), workspace(*bytes);
  const double seconds = BestSeconds([&] {
    MP_CHECK(cache.Execute(spec, a.data(), b.data(), nullptr, c.data(), workspace.data()).ok());
  });
  return 2.0 * kN * kN * kN / seconds;
}

// FLOP/s of a large product.
double ProductRate(DType type) {
  static std::map<DType, double> rates;
  if (!rates.contains(type)) rates[type] = MeasureProduct(type);
  return rates[type];
}

// Bytes/s read plus written by a parallel copy.
double CopyRate() {
  static const double rate = [] {
    constexpr int64_t kBytes = 256 << 20;
    Buffer from(kBytes), to(kBytes);
    const double seconds = BestSeconds([&] {
      ParallelFor(0, kBytes, 1 << 16, [&](int64_t begin, int64_t end) {
        std::memcpy(to.as<char>() + begin, from.as<char>() + begin, end - begin);
      });
    });
    return 2.0 * kBytes / seconds;
  }();
  return rate;
}

void ReportFlops(benchmark::State& state, double flops, DType type) {
  const double done = flops * static_cast<double>(state.iterations());
  state.counters["GFLOPs"] = benchmark::Counter(done / 1e9, benchmark::Counter::kIsRate);
  state.counters["floor"] =
      benchmark::Counter(done / ProductRate(type), benchmark::Counter::kIsRate);
}
void ReportBytes(benchmark::State& state, double bytes) {
  const double done = bytes * static_cast<double>(state.iterations());
  state.counters["GBs"] = benchmark::Counter(done / 1e9, benchmark::Counter::kIsRate);
  state.counters["floor"] = benchmark::Counter(done / CopyRate(), benchmark::Counter::kIsRate);
}

void Product(benchmark::State& state, const MatmulSpec& spec) {
  MatmulCache cache;
  const auto bytes = cache.WorkspaceBytes(spec);
  MP_CHECK(bytes.ok()) << bytes.status();
  Buffer a(spec.m * spec.k * 4), b(spec.n * spec.k * 4), c(spec.m * spec.n * 4), bias(spec.n * 4);
  Buffer workspace(*bytes);
  ProductRate(spec.a);
  for (auto _ : state) {
    MP_CHECK(cache.Execute(spec, a.data(), b.data(), bias.data(), c.data(), workspace.data()).ok());
  }
  ReportFlops(state, 2.0 * spec.m * spec.n * spec.k, spec.a);
}

void RegisterProducts(DType type, const std::string& suffix) {
  struct Layer {
    const char* name;
    int64_t in, out;
    bool transposed;  // the weight is stored [out, in]
  };
  for (const Layer& l :
       {Layer{"qkv", kWidth, 3 * kWidth, false}, Layer{"projection", kWidth, kWidth, false},
        Layer{"up", kWidth, 4 * kWidth, false}, Layer{"down", 4 * kWidth, kWidth, false},
        Layer{"head", kWidth, kVocabulary, true}}) {
    const std::string name = std::string("matmul/") + l.name;
    const MatmulSpec forward{.m = kTokens,
                             .n = l.out,
                             .k = l.in,
                             .transpose_b = l.transposed,
                             .a = type,
                             .b = type,
                             .c = type,
                             .bias = !l.transposed};
    const MatmulSpec input{.m = kTokens,
                           .n = l.in,
                           .k = l.out,
                           .transpose_b = !l.transposed,
                           .a = type,
                           .b = type,
                           .c = type};
    const MatmulSpec weight{.m = l.transposed ? l.out : l.in,
                            .n = l.transposed ? l.in : l.out,
                            .k = kTokens,
                            .transpose_a = true,
                            .a = type,
                            .b = type,
                            .c = DType::kF32,
                            .accumulate = true};
    for (const auto& [kind, spec] :
         {std::pair{"/forward/", forward}, std::pair{"/input_gradient/", input},
          std::pair{"/weight_gradient/", weight}}) {
      benchmark::RegisterBenchmark((name + kind + suffix).c_str(), Product, spec)->Apply(UseTime);
    }
  }
}

// Multiply-adds that the masks leave: of length^2 per document, head and product, half where
// causal, or of the window's.
double AttentionFlops(const AttentionShape& s, int64_t documents, int products) {
  const double length = static_cast<double>(s.sequence) / static_cast<double>(documents);
  double seen = s.causal ? (length + 1) / 2 : length;
  if (s.window > 0) {
    const double window = std::min(length, static_cast<double>(s.window));
    seen = window - window * (window - 1) / 2 / length;  // the first ones see fewer
  }
  return 2.0 * products * s.batch * s.heads * s.head_dim * s.sequence * seen;
}

template <typename T>
void Attention(benchmark::State& state, bool backward) {
  const AttentionShape s{state.range(0),      state.range(1), 12, 64, 0,
                         state.range(2) != 0, state.range(4)};
  const int64_t documents = state.range(3);
  std::vector<int32_t> packed(s.batch * s.sequence);
  for (size_t i = 0; i < packed.size(); ++i) {
    packed[i] = static_cast<int32_t>(i % s.sequence * documents / s.sequence);
  }
  const int32_t* ids = documents > 1 ? packed.data() : nullptr;
  const int64_t outputs = s.batch * s.sequence * s.heads * s.head_dim;
  Buffer qkv(3 * outputs * 4), out(outputs * 4), d_out(outputs * 4), dqkv(3 * outputs * 4);
  Buffer lse(s.batch * s.heads * s.sequence * 4);
  Buffer workspace(std::max(AttentionForwardWorkspaceBytes(s, kDTypeOf<T>, MaxThreads()),
                            AttentionBackwardWorkspaceBytes(s, kDTypeOf<T>, MaxThreads())));
  ProductRate(kDTypeOf<T>);
  AttentionForward(s, qkv.as<T>(), ids, out.as<T>(), lse.as<float>(), workspace.data());
  for (auto _ : state) {
    if (backward) {
      AttentionBackward(s, qkv.as<T>(), ids, out.as<T>(), lse.as<float>(), d_out.as<T>(),
                        dqkv.as<T>(), workspace.data());
    } else {
      AttentionForward(s, qkv.as<T>(), ids, out.as<T>(), lse.as<float>(), workspace.data());
    }
  }
  ReportFlops(state, AttentionFlops(s, documents, backward ? 5 : 2), kDTypeOf<T>);
}

template <typename T>
void Norm(benchmark::State& state) {
  const int64_t n = kTokens * kWidth;
  Buffer residual(n * 4), delta(n * 4), x(n * 4), y(n * 4), gamma(kWidth * 4), beta(kWidth * 4);
  Buffer mean(kTokens * 4), rstd(kTokens * 4);
  CopyRate();
  for (auto _ : state) {
    ResidualLayerNormForward(residual.as<T>(), delta.as<T>(), DropoutParams{}, gamma.as<T>(),
                             beta.as<T>(), kTokens, kWidth, 1e-5f, x.as<T>(), y.as<T>(),
                             mean.as<float>(), rstd.as<float>());
  }
  ReportBytes(state, 4.0 * n * sizeof(T));
}

template <typename T>
void NormBackward(benchmark::State& state) {
  const int64_t n = kTokens * kWidth;
  Buffer dy(n * 4), x(n * 4), gamma(kWidth * 4), mean(kTokens * 4), rstd(kTokens * 4), dx(n * 4);
  Buffer dgamma(kWidth * 4), dbeta(kWidth * 4);
  Buffer workspace(LayerNormBackwardWorkspaceBytes(kTokens, kWidth));
  LayerNormBackwardArgs<T> args;
  args.dy = dy.as<T>();
  args.x = x.as<T>();
  args.gamma = gamma.as<T>();
  args.mean = mean.as<float>();
  args.rstd = rstd.as<float>();
  args.dx_upstream = args.dx = dx.as<T>();
  args.dgamma = dgamma.as<float>();
  args.dbeta = dbeta.as<float>();
  std::memset(args.dx, 0, n * sizeof(T));
  std::memset(mean.data(), 0, kTokens * 4);
  std::memset(rstd.data(), 0, kTokens * 4);
  CopyRate();
  for (auto _ : state) LayerNormBackward(args, kTokens, kWidth, workspace.data());
  ReportBytes(state, 4.0 * n * sizeof(T));
}

template <typename T>
void GeluBoth(benchmark::State& state, bool backward) {
  const int64_t n = kTokens * 4 * kWidth;
  Buffer x(n * 4), y(n * 4), dy(n * 4);
  CopyRate();
  for (auto _ : state) {
    if (backward) {
      GeluBackward(x.as<T>(), dy.as<T>(), n, y.as<T>());
    } else {
      GeluForward(x.as<T>(), n, y.as<T>());
    }
  }
  ReportBytes(state, (backward ? 3.0 : 2.0) * n * sizeof(T));
}

template <typename T>
void Bias(benchmark::State& state) {
  const int64_t n = kTokens * 4 * kWidth;
  Buffer dy(n * 4), db(4 * kWidth * 4);
  Buffer workspace(BiasGradientWorkspaceBytes(kTokens, 4 * kWidth));
  CopyRate();
  for (auto _ : state) {
    BiasGradient(dy.as<T>(), kTokens, 4 * kWidth, false, db.as<float>(), workspace.data());
  }
  ReportBytes(state, 1.0 * n * sizeof(T));
}

template <typename T>
void Embed(benchmark::State& state, bool backward) {
  Buffer table(kVocabulary * kWidth * 4), positions(kSequence * kWidth * 4),
      x(kTokens * kWidth * 4);
  std::vector<int32_t> tokens(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) tokens[i] = static_cast<int32_t>(i * 7919 % kVocabulary);
  const EmbeddingRows rows{tokens.data(), nullptr, nullptr, kBatch, kSequence};
  CopyRate();
  for (auto _ : state) {
    if (backward) {
      EmbeddingBackward<T>(rows, x.as<T>(), kWidth, DropoutParams{},
                           {table.as<float>(), kVocabulary, true},
                           {positions.as<float>(), kSequence, true}, {});
    } else {
      EmbeddingForward<T>(rows, {table.as<T>(), positions.as<T>()}, kWidth, DropoutParams{},
                          x.as<T>());
    }
  }
  const double n = 1.0 * kTokens * kWidth;
  ReportBytes(state, backward ? n * (sizeof(T) + 16) : n * 3 * sizeof(T));
}

template <typename T>
void Classify(benchmark::State& state) {
  constexpr int64_t kRows = 256;
  Buffer logits(kRows * kVocabulary * 4), workspace(ClassifierWorkspaceBytes(kRows));
  const std::vector<int32_t> targets(kRows, 17);
  CopyRate();
  for (auto _ : state) {
    LossSum sum;
    ClassifierForwardBackward(logits.as<T>(), targets.data(), kRows, kVocabulary, 1.0f,
                              workspace.data(), &sum);
    benchmark::DoNotOptimize(sum.loss);
  }
  ReportBytes(state, 2.0 * kRows * kVocabulary * sizeof(T));
}

template <typename T>
void Adam(benchmark::State& state) {
  constexpr int64_t kN = 32 << 20;
  Buffer p(kN * 4), m(kN * 4), v(kN * 4), g(kN * 4), copy(kN * 4);
  CopyRate();
  for (auto _ : state) {
    AdamW({.learning_rate = 1e-6f}, kN, p.as<float>(), m.as<float>(), v.as<float>(), g.as<float>(),
          copy.as<T>());
  }
  ReportBytes(state, kN * (28.0 + sizeof(T)));
}

void Norm2(benchmark::State& state) {
  constexpr int64_t kN = 32 << 20;
  Buffer g(kN * 4), workspace(SumSquaresWorkspaceBytes(kN));
  CopyRate();
  for (auto _ : state) {
    benchmark::DoNotOptimize(SumSquares(g.as<float>(), kN, workspace.data()));
  }
  ReportBytes(state, 4.0 * kN);
}

void Init(benchmark::State& state) {
  constexpr int64_t kN = 8 << 20;
  Buffer out(kN * 4);
  CopyRate();
  for (auto _ : state) NormalInit(out.as<float>(), kN, 0.0f, 0.02f, 1, 2, 0);
  ReportBytes(state, 4.0 * kN);
}

template <typename T>
void RegisterAll(const std::string& suffix) {
  const auto add = [&](const std::string& name, auto function) {
    return benchmark::RegisterBenchmark((name + "/" + suffix).c_str(), function)->Apply(UseTime);
  };
  RegisterProducts(kDTypeOf<T>, suffix);
  for (bool backward : {false, true}) {
    add(backward ? "attention/backward" : "attention/forward",
        [=](benchmark::State& s) { Attention<T>(s, backward); })
        ->ArgNames({"batch", "sequence", "causal", "documents", "window"})
        ->Args({8, 256, 1, 1, 0})
        ->Args({2, 512, 1, 1, 0})
        ->Args({1, 1024, 1, 1, 0})
        ->Args({1, 1024, 1, 8, 0})
        ->Args({2, 512, 0, 1, 0})
        ->Args({1, 1024, 0, 1, 0})
        ->Args({1, 1024, 0, 8, 0})
        ->Args({1, 4096, 1, 1, 0})
        ->Args({1, 4096, 1, 1, 512});
  }
  add("residual_layernorm/forward", Norm<T>);
  add("layernorm/backward", NormBackward<T>);
  for (bool backward : {false, true}) {
    add(backward ? "gelu/backward" : "gelu/forward",
        [=](benchmark::State& s) { GeluBoth<T>(s, backward); });
    add(backward ? "embedding/backward" : "embedding/forward",
        [=](benchmark::State& s) { Embed<T>(s, backward); });
  }
  add("bias_gradient", Bias<T>);
  add("classifier", Classify<T>);
  add("adamw", Adam<T>);
}

}  // namespace
}  // namespace milepost::kernels

int main(int argc, char** argv) {
  using milepost::DType;
  milepost::kernels::RegisterAll<milepost::bf16>("bf16");
  milepost::kernels::RegisterAll<float>("f32");
  using milepost::kernels::UseTime;
  benchmark::RegisterBenchmark("sum_squares", milepost::kernels::Norm2)->Apply(UseTime);
  benchmark::RegisterBenchmark("normal_init", milepost::kernels::Init)->Apply(UseTime);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext(
      "large product, GFLOP/s",
      "bf16 " + std::to_string(milepost::kernels::ProductRate(DType::kBf16) / 1e9) + ", f32 " +
          std::to_string(milepost::kernels::ProductRate(DType::kF32) / 1e9));
  benchmark::AddCustomContext("copy, GB/s read + written",
                              std::to_string(milepost::kernels::CopyRate() / 1e9));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
