// The tensors of a checkpoint whose ranks have different ones.
//
//   MP_ASSIGN_OR_RETURN(auto tensors, AgreeOnTensors(communicator, step, own));
#ifndef MILEPOST_WORKER_SCRIPT_TENSOR_UNION_H_
#define MILEPOST_WORKER_SCRIPT_TENSOR_UNION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::worker {

// Collective. Every rank gets the same list: the tensors of all ranks, in the order of their first
// rank. FAILED_PRECONDITION, the same on every rank: the ranks are at different steps, or have a
// tensor of one name and kind in different forms. RESOURCE_EXHAUSTED, the same on every rank: the
// lists are too long. Blocks. Errors of the communicator are returned unchanged.
absl::StatusOr<std::vector<v1::TensorInfo>> AgreeOnTensors(comm::Communicator& communicator,
                                                           int64_t step,
                                                           const std::vector<v1::TensorInfo>& own);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_TENSOR_UNION_H_
