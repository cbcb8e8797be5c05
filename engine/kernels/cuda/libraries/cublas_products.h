// Matrix products through cuBLASLt, row-major as the ops have them.
//
//   MP_ASSIGN_OR_RETURN(auto products, CublasProducts::Create({.algorithms_path = path}));
//   MP_RETURN_IF_ERROR(products->Prepare(product));   // while planning: the arena is not there
//   ...                                               // the plan holds products->WorkspaceBytes()
//   MP_RETURN_IF_ERROR(products->Execute(product, {x, w, bias, y}, workspace, stream));
//   MP_RETURN_IF_ERROR(products->SaveAlgorithms());
//
// Prepare makes a product's descriptors and chooses its algorithm: the one that UseChoices has, or
// the one kept from an earlier start on this device (algorithm_file.h), else the fastest of those
// that cuBLASLt proposes, each run a few times on memory that Prepare allocates and frees. It
// blocks, for some tens of milliseconds. The same file, device and library: the same algorithms, so
// the same bits.
//
// Sums are fp32; fp32 operands are not rounded to TF32. Execute allocates nothing, does not wait
// and may be captured. Errors: INVALID_ARGUMENT for products that LayoutOf refuses and for ones
// that were not prepared, UNIMPLEMENTED where cuBLASLt has no algorithm, RESOURCE_EXHAUSTED where
// timing finds no memory, INTERNAL where a call fails. Not thread-safe: one per device and
// executor.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_CUBLAS_PRODUCTS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_CUBLAS_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/kernels/cuda/libraries/device_products.h"

namespace milepost::kernels::cuda {

struct CublasOptions {
  // What every product may use and the plan holds, whichever algorithms are chosen: so that planned
  // bytes do not depend on timings. 32 MiB is what NVIDIA recommends for Hopper.
  int64_t workspace_bytes = int64_t{32} << 20;
  int proposals = 8;            // that are timed; 1: cuBLASLt's first, untimed
  std::string algorithms_path;  // empty: nothing is kept
};

class CublasProducts : public DeviceProducts {
 public:
  // For the current device.
  static absl::StatusOr<std::unique_ptr<CublasProducts>> Create(const CublasOptions& options);
  ~CublasProducts() override;
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  // Why the file of algorithms was not used; OK: it was, or there was none yet. Worth a log line.
  const absl::Status& algorithms_status() const;
  absl::Status SaveAlgorithms() const;

  // Go before the file's.
  absl::Status UseChoices(absl::string_view choices) override;
  std::string Choices() const override;

  // Of any product: 256-byte aligned.
  int64_t WorkspaceBytes() const override;
  const std::string& identity() const override;

  absl::Status Prepare(const Product& product) override;
  absl::Status Execute(const Product& product, const ProductArguments& arguments, void* workspace,
                       CUstream_st* stream) override;

 private:
  struct Impl;
  explicit CublasProducts(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_CUBLAS_PRODUCTS_H_
