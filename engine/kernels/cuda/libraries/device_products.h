// Matrix products on a device, whoever computes them: cuBLASLt (cublas_products.h) or, in tests,
// the host (testing/host_products.h). Needs no CUDA. One thread at a time.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_DEVICE_PRODUCTS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_DEVICE_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/kernels/cuda/libraries/product_layout.h"

struct CUstream_st;

namespace milepost::kernels::cuda {

// Device memory, aligned to product.alignment. `bias` where spec.bias; `aux` where the epilogue has
// one; `addend`, laid out as c, is what an accumulating product adds to, c itself where it is null.
struct ProductArguments {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
  void* aux = nullptr;
  const void* addend = nullptr;
  // Of 8-bit operands, one float each: what the codes are multiplied by.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};

// Of the text of choices, some 250 bytes a product: a GPT-2's are 20 products.
inline constexpr size_t kMaxChoicesBytes = 64 << 10;

class DeviceProducts {
 public:
  virtual ~DeviceProducts() = default;

  // Of any product: 256-byte aligned.
  virtual int64_t WorkspaceBytes() const = 0;

  // The device and the library, in words of one line. Where it is the same, so are the bits of
  // products with the same choices.
  virtual const std::string& identity() const = 0;

  // Before the first Prepare, which then takes what Choices() of another one has, as far as it has
  // the product: so both have the same bits. FAILED_PRECONDITION where it has nothing for this
  // device and library, DATA_LOSS where that is damaged: then all is chosen anew.
  virtual absl::Status UseChoices(absl::string_view choices) = 0;
  // All that was given to UseChoices, also for other devices, and that Prepare has chosen
  // (job_choices.h).
  virtual std::string Choices() const = 0;

  // Before the first Execute of a product. Blocks. UNIMPLEMENTED where there is no algorithm.
  virtual absl::Status Prepare(const Product& product) = 0;
  // Enqueued on `stream`; does not wait.
  virtual absl::Status Execute(const Product& product, const ProductArguments& arguments,
                               void* workspace, CUstream_st* stream) = 0;
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_DEVICE_PRODUCTS_H_
