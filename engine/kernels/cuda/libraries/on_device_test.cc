// What the libraries compute, against the CPU's kernels in fp32 over the same numbers. Skipped
// where there is no GPU.
#include "gtest/gtest.h"

#ifdef MILEPOST_HAVE_CUDA

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cuda/libraries/cublas_products.h"
#include "engine/kernels/cuda/libraries/cudnn_graphs.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/ops/convolution/convolution_cpu_kernel.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

#define SKIP_WITHOUT_DEVICE()                                        \
  do {                                                               \
    int devices = 0;                                                 \
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) \
      GTEST_SKIP() << "no CUDA device";                              \
  } while (false)

// Of sums of products of 16-bit numbers, rounded once to 16 bits; attention rounds probabilities
// too.
constexpr double kBound = 6e-3;

// Numbers that bf16 holds, in [-1, 1].
std::vector<float> Numbers(int64_t count, uint64_t seed) {
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    x = ToFloat(ToBf16(static_cast<float>(static_cast<int64_t>(seed >> 33) % 1001 - 500) / 500));
  }
  return numbers;
}

std::vector<bf16> Halves(const std::vector<float>& x) {
  std::vector<bf16> halves(x.size());
  std::transform(x.begin(), x.end(), halves.begin(), ToBf16);
  return halves;
}

std::vector<float> Floats(const std::vector<bf16>& x) {
  std::vector<float> floats(x.size());
  std::transform(x.begin(), x.end(), floats.begin(), [](bf16 v) { return ToFloat(v); });
  return floats;
}

// Device memory; poisoned with NaNs where nothing is copied into it.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<int64_t>(count, 1) * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xff, count * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  void* data_ = nullptr;
  int64_t count_;
};

// |got - want| / |want| over all elements.
double Error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * static_cast<double>(got[i] - want[i]);
    size += want[i] * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / size);
}

// The backward with one head of keys a call; without documents also one sequence.
absl::Status BackwardInParts(CudnnGraphs& cudnn, const AttentionGraph& graph,
                             const AttentionBackwardArguments& whole, bf16* dqkv) {
  AttentionGraph part = graph;
  part.row_kv_heads = graph.KvHeads();
  part.shape.kv_heads = 1;
  part.shape.heads = graph.Group();
  if (graph.max_documents == 0) part.shape.batch = 1;
  MP_ASSIGN_OR_RETURN(const int64_t bytes, cudnn.WorkspaceBytes(part, AttentionPass::kBackward));
  const DeviceArray<char> workspace(bytes);
  for (int64_t row = 0; row < graph.Rows(); row += part.Rows()) {
    for (int64_t head = 0; head < graph.KvHeads(); ++head) {
      const AttentionBackwardArguments arguments = {
          .qkv = static_cast<const bf16*>(whole.qkv) + row * graph.QkvWidth(),
          .tables = whole.tables,
          .out = static_cast<const bf16*>(whole.out) + row * graph.OutWidth(),
          .lse = whole.lse + row * graph.shape.heads,
          .dout = static_cast<const bf16*>(whole.dout) + row * graph.OutWidth(),
          .dqkv = dqkv + row * graph.QkvWidth(),
          .first_kv_head = head};
      MP_RETURN_IF_ERROR(cudnn.AttentionBackward(part, arguments, workspace.get(), nullptr));
    }
  }
  // The scratch outlives what was enqueued.
  return cudaDeviceSynchronize() == cudaSuccess ? absl::OkStatus()
                                                : absl::InternalError("cudaDeviceSynchronize");
}

void ExpectAttention(CudnnGraphs& cudnn, const AttentionGraph& graph,
                     const std::vector<int32_t>& documents) {
  const AttentionShape& s = graph.shape;
  const int64_t wide = graph.Rows() * graph.QkvWidth(), narrow = graph.Rows() * graph.OutWidth();
  const std::vector<float> qkv = Numbers(wide, 1), dout = Numbers(narrow, 2);
  const int threads = MaxThreads();
  std::vector<float> out(narrow), lse(graph.Rows() * s.heads), dqkv(wide);
  std::vector<char> scratch(64 +
                            std::max(AttentionForwardWorkspaceBytes(s, DType::kF32, threads),
                                     AttentionBackwardWorkspaceBytes(s, DType::kF32, threads)));
  char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  const int32_t* ids = documents.empty() ? nullptr : documents.data();
  AttentionForward<float>(s, qkv.data(), ids, out.data(), lse.data(), aligned);
  AttentionBackward<float>(s, qkv.data(), ids, out.data(), lse.data(), dout.data(), dqkv.data(),
                           aligned);

  const DeviceArray<bf16> d_qkv(Halves(qkv)), d_dout(Halves(dout));
  DeviceArray<bf16> d_out(narrow), d_dqkv(wide);
  DeviceArray<float> d_lse(graph.Rows() * s.heads);
  std::vector<int32_t> tables(documents.empty() ? 0 : DocumentTablesOf(graph).entries);
  if (!documents.empty()) {
    ASSERT_TRUE(MakeDocumentTables(graph, documents, absl::MakeSpan(tables)).ok());
  }
  const DeviceArray<int32_t> d_tables(tables);
  const int32_t* at = documents.empty() ? nullptr : d_tables.get();
  const auto forward = cudnn.WorkspaceBytes(graph, AttentionPass::kForward);
  const auto backward = cudnn.WorkspaceBytes(graph, AttentionPass::kBackward);
  ASSERT_TRUE(forward.ok()) << forward.status();
  ASSERT_TRUE(backward.ok()) << backward.status();
  const DeviceArray<char> workspace(std::max(*forward, *backward));
  absl::Status status =
      cudnn.Attention(graph, {d_qkv.get(), at, d_out.get(), d_lse.get()}, workspace.get(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(Error(Floats(d_out.Read()), out), kBound);
  if (documents.empty()) {  // otherwise another layout
    EXPECT_LT(Error(d_lse.Read(), lse), 1e-3);
  }
  const AttentionBackwardArguments arguments{d_qkv.get(), at,           d_out.get(),
                                             d_lse.get(), d_dout.get(), d_dqkv.get()};
  status = cudnn.AttentionBackward(graph, arguments, workspace.get(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(Error(Floats(d_dqkv.Read()), dqkv), 2 * kBound);

  DeviceArray<bf16> d_parts(wide);
  status = BackwardInParts(cudnn, graph, arguments, d_parts.get());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LT(Error(Floats(d_parts.Read()), dqkv), 2 * kBound);
}

TEST(OnDeviceTest, AttentionIsTheCpus) {
  SKIP_WITHOUT_DEVICE();
  const auto cudnn = CudnnGraphs::Create();
  ASSERT_TRUE(cudnn.ok()) << cudnn.status();
  for (const bool causal : {true, false}) {
    for (const auto& [kv_heads, head_dim] : {std::pair{4, 64}, {2, 64}, {1, 256}}) {
      AttentionGraph graph{.shape = {.batch = 2,
                                     .sequence = 192,
                                     .heads = 4,
                                     .head_dim = head_dim,
                                     .kv_heads = kv_heads,
                                     .causal = causal}};
      ExpectAttention(**cudnn, graph, {});
      graph.max_documents = 16;
      std::vector<int32_t> ids(graph.Rows());
      for (int64_t i = 0; i < graph.Rows(); ++i) ids[i] = static_cast<int32_t>(i % 192 / 50);
      ExpectAttention(**cudnn, graph, ids);
      if (!causal) continue;
      graph.shape.window = 40;
      ExpectAttention(**cudnn, graph, ids);
      graph.max_documents = 0;
      ExpectAttention(**cudnn, graph, {});
    }
  }
}

TEST(OnDeviceTest, ConvolutionsAreTheCpus) {
  SKIP_WITHOUT_DEVICE();
  const auto cudnn = CudnnGraphs::Create();
  ASSERT_TRUE(cudnn.ok()) << cudnn.status();
  ConvolutionSpec spec{.batch = 2,
                       .height = 14,
                       .width = 10,
                       .in = 16,
                       .out = 32,
                       .kernel = 3,
                       .stride = 2,
                       .padding = 1};
  const int64_t nx = spec.batch * spec.height * spec.width * spec.in;
  const int64_t ny = spec.batch * spec.OutHeight() * spec.OutWidth() * spec.out;
  const std::vector<float> x = Numbers(nx, 3), w = Numbers(spec.WeightElements(), 4);
  const std::vector<float> dy = Numbers(ny, 5);
  std::vector<float> y(ny), dx(nx), dw(w.size());
  ConvolutionCache cpu;
  size_t bytes = 0;
  for (const auto pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                          ConvolutionPass::kBackwardWeights}) {
    const auto needed = cpu.WorkspaceBytes(spec, pass);
    ASSERT_TRUE(needed.ok()) << needed.status();
    bytes = std::max(bytes, *needed);
  }
  std::vector<char> scratch(bytes + 64);
  char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  ASSERT_TRUE(cpu.Forward(spec, x.data(), w.data(), y.data(), aligned).ok());
  ASSERT_TRUE(cpu.BackwardData(spec, dy.data(), w.data(), dx.data(), aligned).ok());
  ASSERT_TRUE(cpu.BackwardWeights(spec, x.data(), dy.data(), false, dw.data(), aligned).ok());

  spec.type = DType::kBf16;
  const DeviceArray<bf16> d_x(Halves(x)), d_w(Halves(w)), d_dy(Halves(dy));
  const auto run = [&](ConvolutionPass pass, const bf16* first, const bf16* second,
                       const std::vector<float>& want) {
    const DeviceArray<bf16> result(static_cast<int64_t>(want.size()));
    const auto needed = (*cudnn)->WorkspaceBytes(spec, pass);
    ASSERT_TRUE(needed.ok()) << needed.status();
    const DeviceArray<char> workspace(*needed);
    const absl::Status status =
        (*cudnn)->Convolution(spec, pass, {first, second, result.get()}, workspace.get(), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LT(Error(Floats(result.Read()), want), kBound);
  };
  run(ConvolutionPass::kForward, d_x.get(), d_w.get(), y);
  run(ConvolutionPass::kBackwardData, d_dy.get(), d_w.get(), dx);
  run(ConvolutionPass::kBackwardWeights, d_x.get(), d_dy.get(), dw);
}

TEST(OnDeviceTest, ProductsAreTheCpus) {
  SKIP_WITHOUT_DEVICE();
  const auto products = CublasProducts::Create({});
  ASSERT_TRUE(products.ok()) << products.status();
  constexpr DType h = DType::kBf16;
  const MatmulSpec specs[] = {
      {.m = 96, .n = 64, .k = 32, .a = h, .b = h, .c = h, .bias = true, .bias_type = h},
      {.m = 96, .n = 64, .k = 32, .transpose_b = true, .a = h, .b = h, .c = h},
      {.m = 64, .n = 32, .k = 96, .transpose_a = true, .a = h, .b = h, .accumulate = true},
      {.m = 33, .n = 50, .k = 17},
  };
  MatmulCache cpu;
  for (const MatmulSpec& spec : specs) {
    const Product product{.spec = spec};
    SCOPED_TRACE(ProductKey(product));
    const std::vector<float> a = Numbers(spec.m * spec.k, 6), b = Numbers(spec.k * spec.n, 7);
    const std::vector<float> bias = Numbers(spec.n, 8), c = Numbers(spec.m * spec.n, 9);
    MatmulSpec plain = spec;
    plain.a = plain.b = plain.c = plain.bias_type = DType::kF32;
    std::vector<float> want = c;
    const auto bytes = cpu.WorkspaceBytes(plain);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    std::vector<char> scratch(*bytes + 64);
    char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
    ASSERT_TRUE(cpu.Execute(plain, a.data(), b.data(), bias.data(), want.data(), aligned).ok());

    const bool half = spec.a == h, half_result = spec.c == h;
    const DeviceArray<bf16> ha(Halves(a)), hb(Halves(b)), hbias(Halves(bias)), hc(Halves(c));
    const DeviceArray<float> fa(a), fb(b), fc(c);
    absl::Status status = (*products)->Prepare(product);
    ASSERT_TRUE(status.ok()) << status;
    const DeviceArray<char> workspace((*products)->WorkspaceBytes());
    ProductArguments arguments;
    arguments.a = half ? static_cast<const void*>(ha.get()) : fa.get();
    arguments.b = half ? static_cast<const void*>(hb.get()) : fb.get();
    arguments.bias = hbias.get();
    arguments.c = half_result ? static_cast<void*>(hc.get()) : fc.get();
    status = (*products)->Execute(product, arguments, workspace.get(), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LT(Error(half_result ? Floats(hc.Read()) : fc.Read(), want),
              half_result ? kBound : 1e-5);
  }
}

// a [m,k] times b [n,k]', in fp64.
std::vector<float> PlainProduct(const MatmulSpec& s, const std::vector<float>& a,
                                const std::vector<float>& b) {
  std::vector<float> c(static_cast<size_t>(s.m * s.n));
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < s.k; ++l) sum += double{a[i * s.k + l]} * b[j * s.k + l];
      c[i * s.n + j] = static_cast<float>(sum);
    }
  }
  return c;
}

// The tanh form, and its slope by differences: what cuBLASLt means by GELU.
double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double GeluSlope(double x) { return (Gelu(x + 1e-5) - Gelu(x - 1e-5)) / 2e-5; }

absl::Status RunProduct(CublasProducts& products, const Product& product,
                        const ProductArguments& arguments) {
  if (const absl::Status status = products.Prepare(product); !status.ok()) return status;
  const DeviceArray<char> workspace(products.WorkspaceBytes());
  return products.Execute(product, arguments, workspace.get(), nullptr);
}

TEST(OnDeviceTest, FusedGelusAreTheTanhForms) {
  SKIP_WITHOUT_DEVICE();
  const auto products = CublasProducts::Create({});
  ASSERT_TRUE(products.ok()) << products.status();
  constexpr DType h = DType::kBf16;
  MatmulSpec spec{.m = 96, .n = 64, .k = 32, .transpose_b = true, .a = h, .b = h, .c = h};
  spec.bias_type = h;
  const std::vector<float> a = Numbers(spec.m * spec.k, 1), b = Numbers(spec.n * spec.k, 2);
  const std::vector<float> bias = Numbers(spec.n, 3), aux = Numbers(spec.m * spec.n, 4);
  const std::vector<float> plain = PlainProduct(spec, a, b);
  std::vector<float> sums = plain, gelu = plain, slope = plain;
  for (size_t i = 0; i < plain.size(); ++i) {
    sums[i] += bias[i % spec.n];
    gelu[i] = static_cast<float>(Gelu(sums[i]));
    slope[i] = static_cast<float>(plain[i] * GeluSlope(aux[i]));
  }
  const DeviceArray<bf16> da(Halves(a)), db(Halves(b)), dbias(Halves(bias)), daux(Halves(aux));
  for (const Epilogue epilogue : {Epilogue::kGeluBackward, Epilogue::kGelu, Epilogue::kGeluAlone}) {
    const bool backward = epilogue == Epilogue::kGeluBackward;
    spec.bias = !backward;
    const DeviceArray<bf16> c(spec.m * spec.n);
    const ProductArguments arguments{.a = da.get(),
                                     .b = db.get(),
                                     .bias = backward ? nullptr : dbias.get(),
                                     .c = c.get(),
                                     .aux = HasAux(epilogue) ? daux.get() : nullptr};
    const absl::Status status =
        RunProduct(**products, {.spec = spec, .epilogue = epilogue}, arguments);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LT(Error(Floats(c.Read()), backward ? slope : gelu), kBound);
    if (epilogue == Epilogue::kGelu) {
      EXPECT_LT(Error(Floats(daux.Read()), sums), kBound);
    }
  }
}

TEST(OnDeviceTest, EightBitProductsAreThoseOfTheirNumbers) {
  SKIP_WITHOUT_DEVICE();
  int major = 0, minor = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
  const auto products = CublasProducts::Create({});
  ASSERT_TRUE(products.ok()) << products.status();
  MatmulSpec spec{.m = 96, .n = 64, .k = 32, .transpose_b = true};
  spec.b = DType::kE4M3;
  std::vector<float> a = Numbers(spec.m * spec.k, 1), b = Numbers(spec.n * spec.k, 2);
  std::vector<e4m3> a4, b4;
  std::vector<e5m2> a5;
  std::vector<float> wide4 = a, wide5 = a;
  for (size_t i = 0; i < a.size(); ++i) {
    a4.push_back(ToE4M3(a[i] * 256));
    a5.push_back(ToE5M2(a[i] * 256));
    wide4[i] = ToFloat(a4[i]) / 256;
    wide5[i] = ToFloat(a5[i]) / 256;
  }
  for (float& x : b) {
    b4.push_back(ToE4M3(x * 64));
    x = ToFloat(b4.back()) / 64;
  }
  const DeviceArray<e4m3> da4(a4), db(b4);
  const DeviceArray<e5m2> da5(a5);
  const DeviceArray<float> a_scale(std::vector<float>{1.0F / 256}), b_scale(std::vector{1.0F / 64});
  const std::vector<float> addend = Numbers(spec.m * spec.n, 5), bias = Numbers(spec.n, 6);
  for (const bool gradient : {false, true}) {
    spec.a = gradient ? DType::kE5M2 : DType::kE4M3;
    spec.c = gradient ? DType::kF32 : DType::kBf16;
    spec.accumulate = gradient;
    spec.bias = !gradient;
    spec.bias_type = DType::kBf16;
    const DeviceArray<float> f32(addend);
    const DeviceArray<bf16> h16(spec.m * spec.n), dbias(Halves(bias));
    const ProductArguments arguments{
        .a = gradient ? static_cast<const void*>(da5.get()) : da4.get(),
        .b = db.get(),
        .bias = gradient ? nullptr : dbias.get(),
        .c = gradient ? static_cast<void*>(f32.get()) : h16.get(),
        .a_scale = a_scale.get(),
        .b_scale = b_scale.get()};
    const absl::Status status = RunProduct(**products, {.spec = spec}, arguments);
    if (major < 8 || (major == 8 && minor < 9)) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    std::vector<float> want = PlainProduct(spec, gradient ? wide5 : wide4, b);
    for (size_t i = 0; i < want.size(); ++i) want[i] += gradient ? addend[i] : bias[i % spec.n];
    EXPECT_LT(Error(gradient ? f32.Read() : Floats(h16.Read()), want), gradient ? 1e-3 : kBound);
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda

#else

TEST(OnDeviceTest, EverythingIsTheCpus) { GTEST_SKIP() << "built without CUDA"; }

#endif  // MILEPOST_HAVE_CUDA
