// Fills an interval of a parameter's master from its elements, in the type that the tensor is kept
// in: F32; BF16, rounded to nearest; or kPackedDType, whose intervals are of bytes.
//
//   MP_RETURN_IF_ERROR(FillInterval(session.base_tensors()[target.tensor], target, read));
#ifndef MILEPOST_ENGINE_RUNTIME_SESSION_FILL_INTERVAL_H_
#define MILEPOST_ENGINE_RUNTIME_SESSION_FILL_INTERVAL_H_

#include "absl/status/status.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/runtime/executor/state_interval.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::runtime {

using kernels::ReadElements;

// `tensor`: the interval's, as a session lists it. Only elements that the interval needs are read,
// in order. Returns what `read` does.
absl::Status FillInterval(const v1::TensorInfo& tensor, const StateInterval& target,
                          const ReadElements& read);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_SESSION_FILL_INTERVAL_H_
