#include "engine/kernels/cuda/libraries/cublas_products.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/libraries/algorithm_file.h"
#include "engine/kernels/cuda/libraries/job_choices.h"
#include "engine/kernels/cuda/libraries/noise.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int kMaxProposals = 32;
// Proposals are timed in rounds, in turn, so that what disturbs one disturbs all. Those whose
// shortest time is longer than so many percent of the fastest's take no part in the next round: the
// more often both were timed, the less may lie between them. Of a large model most of the time that
// a first start takes is spent here.
constexpr int64_t kFarBehindPercent[] = {115, 106, 103, 103};
constexpr int64_t kBurstNanoseconds = 1000000;
constexpr int64_t kMostInBurst = 10;

absl::Status StatusOf(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status)));
}

absl::Status StatusOf(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto code = error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

cudaDataType_t DataType(DType type) {
  switch (type) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kE4M3:
      return CUDA_R_8F_E4M3;
    case DType::kE5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t EpilogueOf(const Product& product) {
  const bool bias = product.spec.bias;
  switch (product.epilogue) {
    case Epilogue::kNone:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kGelu:
      return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kGeluAlone:
      return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// Owners of cuBLASLt's objects and of memory.
struct FreeOperation {
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
};
struct FreeLayout {
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
};
struct FreePreference {
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
struct FreeMemory {
  void operator()(void* x) const { cudaFree(x); }
};
struct FreeEvent {
  void operator()(cudaEvent_t x) const { cudaEventDestroy(x); }
};
using OperationPtr = std::unique_ptr<cublasLtMatmulDescOpaque_t, FreeOperation>;
using LayoutPtr = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, FreeLayout>;
using PreferencePtr = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, FreePreference>;
using MemoryPtr = std::unique_ptr<void, FreeMemory>;
using EventPtr = std::unique_ptr<CUevent_st, FreeEvent>;

template <typename T>
absl::Status Set(const OperationPtr& operation, cublasLtMatmulDescAttributes_t what,
                 const T& value) {
  return StatusOf(cublasLtMatmulDescSetAttribute(operation.get(), what, &value, sizeof value),
                  "cublasLtMatmulDescSetAttribute");
}

absl::Status MakeLayout(DType type, const ColumnMajor& matrix, LayoutPtr* layout) {
  cublasLtMatrixLayout_t made = nullptr;
  MP_RETURN_IF_ERROR(StatusOf(
      cublasLtMatrixLayoutCreate(&made, DataType(type), matrix.rows, matrix.columns, matrix.stride),
      "cublasLtMatrixLayoutCreate"));
  layout->reset(made);
  return absl::OkStatus();
}

absl::StatusOr<MemoryPtr> Allocate(int64_t bytes, DType type) {
  void* memory = nullptr;
  MP_RETURN_IF_ERROR(StatusOf(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))),
                              absl::StrCat(bytes, " bytes to time matrix products on")));
  MemoryPtr owner(memory);
  MP_RETURN_IF_ERROR(FillWithNoise(type, bytes, memory));
  return owner;
}

absl::StatusOr<EventPtr> MakeEvent() {
  cudaEvent_t event = nullptr;
  MP_RETURN_IF_ERROR(StatusOf(cudaEventCreate(&event), "cudaEventCreate"));
  return EventPtr(event);
}

int64_t Bytes(const ColumnMajor& matrix, DType type) {
  return matrix.stride * matrix.columns * ByteSize(type);
}

// What a product is to cuBLASLt.
struct Entry {
  absl::Status Make(const Product& product);

  ColumnMajorProduct shape;
  OperationPtr operation;
  LayoutPtr first, second, result;
  cublasLtMatmulAlgo_t algorithm = {};
  Algorithm choice;
  bool chosen = false;
};

absl::Status Entry::Make(const Product& product) {
  MP_ASSIGN_OR_RETURN(shape, LayoutOf(product));
  const MatmulSpec& s = product.spec;
  MP_RETURN_IF_ERROR(MakeLayout(s.b, shape.first, &first));
  MP_RETURN_IF_ERROR(MakeLayout(s.a, shape.second, &second));
  MP_RETURN_IF_ERROR(MakeLayout(s.c, shape.result, &result));
  cublasLtMatmulDesc_t made = nullptr;
  MP_RETURN_IF_ERROR(StatusOf(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                              "cublasLtMatmulDescCreate"));
  operation.reset(made);
  const auto transposition = [](bool on) { return on ? CUBLAS_OP_T : CUBLAS_OP_N; };
  MP_RETURN_IF_ERROR(
      Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposition(shape.transpose_first)));
  MP_RETURN_IF_ERROR(
      Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposition(shape.transpose_second)));
  MP_RETURN_IF_ERROR(Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(product)));
  if (s.bias) {
    MP_RETURN_IF_ERROR(Set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, DataType(s.bias_type)));
  }
  if (shape.aux_stride == 0) return absl::OkStatus();
  MP_RETURN_IF_ERROR(Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, DataType(s.c)));
  return Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.aux_stride);
}

// A key without text, so that looking one up allocates nothing.
using Key = std::array<int64_t, 15>;
Key KeyOf(const Product& p) {
  const MatmulSpec& s = p.spec;
  return {s.m,
          s.n,
          s.k,
          s.transpose_a,
          s.transpose_b,
          static_cast<int64_t>(s.a),
          static_cast<int64_t>(s.b),
          static_cast<int64_t>(s.c),
          s.accumulate,
          s.bias ? 1 + static_cast<int64_t>(s.bias_type) : 0,
          s.a_row,
          s.b_row,
          s.c_row,
          static_cast<int64_t>(p.epilogue),
          p.alignment};
}

absl::StatusOr<std::string> Identity(const CublasOptions& options) {
  int device = 0;
  cudaDeviceProp properties;
  MP_RETURN_IF_ERROR(StatusOf(cudaGetDevice(&device), "cudaGetDevice"));
  MP_RETURN_IF_ERROR(
      StatusOf(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  return absl::StrCat(properties.name, ", compute capability ", properties.major, ".",
                      properties.minor, ", ", properties.multiProcessorCount,
                      " multiprocessors, cuBLASLt ", cublasLtGetVersion(), ", ",
                      options.workspace_bytes, " bytes of workspace");
}

// 8-bit products came with compute capability 8.9.
absl::Status CheckFp8Device() {
  int device = 0, major = 0, minor = 0;
  MP_RETURN_IF_ERROR(StatusOf(cudaGetDevice(&device), "cudaGetDevice"));
  MP_RETURN_IF_ERROR(
      StatusOf(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "cudaDeviceGetAttribute"));
  MP_RETURN_IF_ERROR(
      StatusOf(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
               "cudaDeviceGetAttribute"));
  if (major > 8 || (major == 8 && minor >= 9)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("train.precision: fp8 needs a GPU of compute capability 8.9 or later, this one "
                   "has ",
                   major, ".", minor, "; choose bf16"));
}

// Memory of Prepare's timings.
struct Operands {
  MemoryPtr a, b, bias, c, aux, scale, workspace;
  ProductArguments arguments() const {
    const auto* one = static_cast<const float*>(scale.get());
    return {a.get(), b.get(), bias.get(), c.get(), aux.get(), nullptr, one, one};
  }
};

absl::StatusOr<Operands> AllocateOperands(const Product& product, const ColumnMajorProduct& shape,
                                          int64_t workspace_bytes) {
  const MatmulSpec& s = product.spec;
  Operands memory;
  MP_ASSIGN_OR_RETURN(memory.a, Allocate(Bytes(shape.second, s.a), s.a));
  MP_ASSIGN_OR_RETURN(memory.b, Allocate(Bytes(shape.first, s.b), s.b));
  MP_ASSIGN_OR_RETURN(memory.c, Allocate(Bytes(shape.result, s.c), s.c));
  MP_ASSIGN_OR_RETURN(memory.workspace, Allocate(workspace_bytes, DType::kF32));
  const int64_t element = ByteSize(s.c);
  if (s.bias) {
    MP_ASSIGN_OR_RETURN(memory.bias, Allocate(s.n * element, s.c));
  }
  if (IsFp8(s.a)) {
    MP_ASSIGN_OR_RETURN(memory.scale, Allocate(sizeof(float), DType::kF32));
  }
  if (shape.aux_stride > 0) {
    MP_ASSIGN_OR_RETURN(memory.aux, Allocate(shape.aux_stride * s.m * element, s.c));
  }
  return memory;
}

}  // namespace

struct CublasProducts::Impl {
  explicit Impl(const CublasOptions& given, std::string identity)
      : options(given), algorithms(identity), of_job(std::move(identity)) {}
  ~Impl() {
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  // An earlier choice, if this library still takes it within the workspace.
  bool TakeKept(const Product& product, Entry& entry, const Algorithm* kept) {
    if (kept == nullptr) return false;
    static_assert(sizeof entry.algorithm == sizeof kept->words);
    std::memcpy(&entry.algorithm, kept->words.data(), sizeof entry.algorithm);
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(
        handle, entry.operation.get(), entry.first.get(), entry.second.get(), entry.result.get(),
        entry.result.get(), &entry.algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > static_cast<size_t>(options.workspace_bytes)) {
      return false;
    }
    // Its first run loads it, which waits for all that the device does, and during a step might
    // wait for a peer in the same process that waits for this rank.
    const auto memory = AllocateOperands(product, entry.shape, options.workspace_bytes);
    if (!memory.ok() || !Time(product, entry, entry.algorithm, *memory, 1).ok()) return false;
    entry.choice = *kept;
    entry.chosen = true;
    return true;
  }

  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Propose(const Product& product,
                                                                       const Entry& entry) {
    cublasLtMatmulPreference_t made = nullptr;
    MP_RETURN_IF_ERROR(
        StatusOf(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate"));
    const PreferencePtr preference(made);
    const uint64_t bytes = static_cast<uint64_t>(options.workspace_bytes);
    MP_RETURN_IF_ERROR(
        StatusOf(cublasLtMatmulPreferenceSetAttribute(
                     made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
                 "cublasLtMatmulPreferenceSetAttribute"));
    const auto alignment = static_cast<uint32_t>(product.alignment);
    for (const auto what :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      MP_RETURN_IF_ERROR(
          StatusOf(cublasLtMatmulPreferenceSetAttribute(made, what, &alignment, sizeof alignment),
                   "cublasLtMatmulPreferenceSetAttribute"));
    }
    const int wanted = std::clamp(options.proposals, 1, kMaxProposals);
    std::vector<cublasLtMatmulHeuristicResult_t> results(wanted);
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, entry.operation.get(), entry.first.get(), entry.second.get(), entry.result.get(),
        entry.result.get(), made, wanted, results.data(), &count);
    results.resize(count);
    std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
    if (status != CUBLAS_STATUS_SUCCESS || results.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("cuBLASLt has no algorithm for ", ProductKey(product), " within ",
                       options.workspace_bytes, " bytes: ", cublasLtGetStatusString(status)));
    }
    return results;
  }

  absl::Status Launch(const Product& product, Entry& entry, const cublasLtMatmulAlgo_t& algorithm,
                      const ProductArguments& x, void* workspace, cudaStream_t stream) {
    // cuBLASLt reads the addresses during the call.
    if (product.spec.bias) {
      MP_RETURN_IF_ERROR(Set(entry.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias));
    }
    if (entry.shape.aux_stride > 0) {
      MP_RETURN_IF_ERROR(Set(entry.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.aux));
    }
    if (IsFp8(product.spec.a)) {  // its first operand is our B
      MP_RETURN_IF_ERROR(Set(entry.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x.b_scale));
      MP_RETURN_IF_ERROR(Set(entry.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.a_scale));
    }
    const void* addend = x.addend != nullptr ? x.addend : x.c;
    const float alpha = 1;
    const cublasStatus_t status = cublasLtMatmul(
        handle, entry.operation.get(), &alpha, x.b, entry.first.get(), x.a, entry.second.get(),
        &entry.shape.beta, addend, entry.result.get(), x.c, entry.result.get(), &algorithm,
        workspace, static_cast<size_t>(options.workspace_bytes), stream);
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return StatusOf(status, ProductKey(product));
  }

  // Nanoseconds of one of `runs` runs that follow each other, as in a step.
  absl::StatusOr<int64_t> Time(const Product& product, Entry& entry,
                               const cublasLtMatmulAlgo_t& algorithm, const Operands& memory,
                               int64_t runs) {
    MP_ASSIGN_OR_RETURN(const EventPtr begin, MakeEvent());
    MP_ASSIGN_OR_RETURN(const EventPtr end, MakeEvent());
    MP_RETURN_IF_ERROR(StatusOf(cudaEventRecord(begin.get(), nullptr), "cudaEventRecord"));
    for (int64_t run = 0; run < runs; ++run) {
      MP_RETURN_IF_ERROR(
          Launch(product, entry, algorithm, memory.arguments(), memory.workspace.get(), nullptr));
    }
    MP_RETURN_IF_ERROR(StatusOf(cudaEventRecord(end.get(), nullptr), "cudaEventRecord"));
    MP_RETURN_IF_ERROR(StatusOf(cudaEventSynchronize(end.get()), "cudaEventSynchronize"));
    float milliseconds = 0;
    MP_RETURN_IF_ERROR(StatusOf(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()),
                                "cudaEventElapsedTime"));
    return static_cast<int64_t>(milliseconds * 1e6f) / runs;
  }

  // One round: each proposal that is not out (negative) gets the shorter of its times. Returns the
  // shortest of all; negative where all are out.
  int64_t TimeRound(const Product& product, Entry& entry, const Operands& memory, bool first,
                    const std::vector<cublasLtMatmulHeuristicResult_t>& proposals,
                    std::vector<int64_t>& times) {
    int64_t shortest = -1;
    for (size_t i = 0; i < proposals.size(); ++i) {
      if (times[i] < 0) continue;
      const int64_t burst =
          first ? 1 : std::clamp<int64_t>(kBurstNanoseconds / times[i], 1, kMostInBurst);
      absl::StatusOr<int64_t> time = Time(product, entry, proposals[i].algo, memory, burst);
      // The first run of all loads it.
      if (first && time.ok()) time = Time(product, entry, proposals[i].algo, memory, 1);
      // A proposal that is refused when it comes to it is none.
      const int64_t took = time.ok() ? std::max<int64_t>(*time, 1) : -1;
      times[i] = first || took < 0 ? took : std::min(times[i], took);
      if (times[i] >= 0 && (shortest < 0 || times[i] < shortest)) shortest = times[i];
    }
    return shortest;
  }

  absl::Status Choose(const Product& product, Entry& entry) {
    const std::string key = ProductKey(product);
    if (TakeKept(product, entry, of_job.Find(key)) ||
        TakeKept(product, entry, algorithms.Find(key))) {
      of_job.Put(key, entry.choice);
      return absl::OkStatus();
    }
    MP_ASSIGN_OR_RETURN(const auto proposals, Propose(product, entry));
    // Also where there is one alone: it is loaded by its first run.
    MP_ASSIGN_OR_RETURN(const Operands memory,
                        AllocateOperands(product, entry.shape, options.workspace_bytes));
    std::vector<int64_t> times(proposals.size(), 0);
    bool first = true;
    for (const int64_t percent : kFarBehindPercent) {
      const int64_t shortest = TimeRound(product, entry, memory, first, proposals, times);
      first = false;
      for (int64_t& time : times) {
        if (time * 100 > shortest * percent) time = -1;
      }
      // One alone is left, or none.
      if (std::count_if(times.begin(), times.end(), [](int64_t t) { return t >= 0; }) < 2) break;
    }
    // The device itself is at fault, or none can be run.
    MP_RETURN_IF_ERROR(StatusOf(cudaDeviceSynchronize(), "timing matrix products"));
    size_t fastest = 0;
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i] >= 0 && (times[fastest] < 0 || times[i] < times[fastest])) fastest = i;
    }
    const int64_t nanoseconds = times[fastest];
    if (nanoseconds < 0) {
      return absl::UnimplementedError(
          absl::StrCat("cuBLASLt can run none of what it proposes for ", ProductKey(product)));
    }
    entry.algorithm = proposals[fastest].algo;
    std::memcpy(entry.choice.words.data(), &entry.algorithm, sizeof entry.algorithm);
    entry.choice.workspace_bytes = static_cast<int64_t>(proposals[fastest].workspaceSize);
    entry.choice.nanoseconds = nanoseconds;
    entry.chosen = true;
    algorithms.Put(ProductKey(product), entry.choice);
    of_job.Put(ProductKey(product), entry.choice);
    return absl::OkStatus();
  }

  CublasOptions options;
  AlgorithmTable algorithms;  // the file's
  JobChoices of_job;          // of all that are prepared, and what was given to UseChoices
  absl::Status algorithms_status;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Entry>> entries;
};

CublasProducts::CublasProducts(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CublasProducts::~CublasProducts() = default;

absl::StatusOr<std::unique_ptr<CublasProducts>> CublasProducts::Create(
    const CublasOptions& options) {
  MP_ASSIGN_OR_RETURN(std::string identity, Identity(options));
  auto impl = std::make_unique<Impl>(options, std::move(identity));
  MP_RETURN_IF_ERROR(StatusOf(cublasLtCreate(&impl->handle), "cublasLtCreate"));
  if (!options.algorithms_path.empty()) {
    const absl::Status read = impl->algorithms.Load(options.algorithms_path);
    if (!absl::IsNotFound(read)) impl->algorithms_status = read;
  }
  return std::unique_ptr<CublasProducts>(new CublasProducts(std::move(impl)));
}

const absl::Status& CublasProducts::algorithms_status() const { return impl_->algorithms_status; }

absl::Status CublasProducts::SaveAlgorithms() const {
  if (impl_->options.algorithms_path.empty()) return absl::OkStatus();
  return impl_->algorithms.Save(impl_->options.algorithms_path);
}

absl::Status CublasProducts::UseChoices(absl::string_view choices) {
  return Annotate(impl_->of_job.Use(choices), "the job's choice of algorithms");
}

const std::string& CublasProducts::identity() const { return impl_->of_job.identity(); }

std::string CublasProducts::Choices() const { return impl_->of_job.Text(kMaxChoicesBytes); }

int64_t CublasProducts::WorkspaceBytes() const { return impl_->options.workspace_bytes; }

absl::Status CublasProducts::Prepare(const Product& product) {
  if (IsFp8(product.spec.a)) MP_RETURN_IF_ERROR(CheckFp8Device());
  std::unique_ptr<Entry>& entry = impl_->entries[KeyOf(product)];
  if (entry != nullptr && entry->chosen) return absl::OkStatus();
  entry = std::make_unique<Entry>();
  MP_RETURN_IF_ERROR(entry->Make(product));
  return impl_->Choose(product, *entry);
}

absl::Status CublasProducts::Execute(const Product& product, const ProductArguments& arguments,
                                     void* workspace, CUstream_st* stream) {
  const auto at = impl_->entries.find(KeyOf(product));
  if (at == impl_->entries.end() || !at->second->chosen) {
    return absl::InvalidArgumentError(
        absl::StrCat("the matrix product ", ProductKey(product), " was not prepared"));
  }
  return impl_->Launch(product, *at->second, at->second->algorithm, arguments, workspace, stream);
}

}  // namespace milepost::kernels::cuda
