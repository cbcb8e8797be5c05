// DeviceProducts on the host, for tests: plain loops with fp32 sums, done when Execute returns.
//
// What cuBLASLt would refuse or read wrongly is an error here too: products that LayoutOf refuses,
// that were not prepared, or whose operands or workspace are not aligned as they promise.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_PRODUCTS_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_PRODUCTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/kernels/cuda/libraries/device_products.h"
#include "engine/kernels/cuda/libraries/job_choices.h"

namespace milepost::kernels::cuda {

class HostProducts : public DeviceProducts {
 public:
  // In which order sums are made: of two, as a library's algorithms give other bits.
  enum class Order : uint64_t { kForward, kBackward };

  explicit HostProducts(int64_t workspace_bytes = int64_t{32} << 20, Order order = Order::kForward,
                        std::string identity = "the host")
      : workspace_bytes_(workspace_bytes), order_(order), choices_(std::move(identity)) {}

  int64_t WorkspaceBytes() const override { return workspace_bytes_; }
  const std::string& identity() const override { return choices_.identity(); }
  absl::Status UseChoices(absl::string_view choices) override { return choices_.Use(choices); }
  std::string Choices() const override { return choices_.Text(kMaxChoicesBytes); }
  absl::Status Prepare(const Product& product) override;
  absl::Status Execute(const Product& product, const ProductArguments& arguments, void* workspace,
                       CUstream_st* stream) override;

  const std::vector<Product>& prepared() const { return prepared_; }

 private:
  const int64_t workspace_bytes_;
  const Order order_;  // that it chooses
  JobChoices choices_;
  std::vector<Product> prepared_;
  std::vector<float> a_, b_;  // op(A) by row, op(B) by column
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_TESTING_HOST_PRODUCTS_H_
