// The type in which Muon's iterations multiply when a spec does not choose one.
#ifndef MILEPOST_COMMON_SPEC_ORTHOGONALIZATION_H_
#define MILEPOST_COMMON_SPEC_ORTHOGONALIZATION_H_

#include "milepost/v1/job_spec.pb.h"

namespace milepost {

// As wide as the model's own products, but at least bf16.
inline v1::Orthogonalization DefaultOrthogonalization(v1::Precision precision) {
  return precision == v1::PRECISION_FP32 ? v1::ORTHOGONALIZATION_FP32 : v1::ORTHOGONALIZATION_BF16;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_ORTHOGONALIZATION_H_
